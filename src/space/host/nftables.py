"""The kernel's rules of the gateway namespace, and loading them in one transaction.

What a slot may do is what is written here; everything else is dropped.  Until the egress gateway exists that is one
thing: answer on a connection that the node (uid 0) opened to the guest agent.  No address of the host, of another
slot or of the world is reachable, in any protocol, and a forged source address does not pass the first hook.
"""

from collections.abc import Iterable

from space.host.process import run

TABLE = "space"

#: `pre_defrag` must come before conntrack puts fragments together (-400), or it never sees one (egress.md §3).
RULES = f"""
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
  set slots {{ type ifname . ipv4_addr; }}
  counter c_fragment {{}}
  counter c_ipv6 {{}}
  counter c_spoofed {{}}
  counter c_protocol {{}}
  counter c_input {{}}
  counter c_forward {{}}
  counter c_output {{}}

  chain pre_defrag {{
    type filter hook prerouting priority -450; policy accept;
    iifname "sb-*" ip frag-off & 0x3fff != 0 counter name c_fragment drop
  }}
  chain pre_raw {{
    type filter hook prerouting priority raw; policy accept;
    iifname != "sb-*" return
    meta nfproto ipv6 counter name c_ipv6 drop
    iifname . ip saddr != @slots counter name c_spoofed drop
    meta l4proto != tcp counter name c_protocol drop
    fib daddr type != local counter name c_forward drop
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ct state invalid counter name c_input drop
    iifname "sb-*" ct state established ct direction reply accept
    counter name c_input drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    counter name c_forward drop
  }}
  chain output {{
    type filter hook output priority filter; policy drop;
    oifname "lo" accept
    oifname "sb-*" meta skuid 0 ct state new accept
    oifname "sb-*" ct state established ct direction original accept
    counter name c_output drop
  }}
}}
"""


async def apply(netns: str, rules: str) -> None:
    """Load `nft` text in a namespace: all of it, or nothing."""
    await run(["nft", "-f", "-"], stdin=rules.encode(), netns=netns)


def admit(slots: Iterable[tuple[str, str]]) -> str:
    """Return the rules that let these (link, guest address) pairs in as sources."""
    return _elements("add", slots)


def expel(slots: Iterable[tuple[str, str]]) -> str:
    """Return the rules that take these pairs out again."""
    return _elements("delete", slots)


def _elements(verb: str, slots: Iterable[tuple[str, str]]) -> str:
    pairs = ", ".join(f'"{link}" . {address}' for link, address in slots)
    return f"{verb} element inet {TABLE} slots {{ {pairs} }}\n" if pairs else ""
