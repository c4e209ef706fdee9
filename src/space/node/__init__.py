"""The node: machines, guest channels and journals of one host."""
