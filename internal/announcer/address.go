// SPDX-License-Identifier: Apache-2.0

package announcer

import "net"

// Reachable returns the address at which clients on other hosts reach a listener at addr. For a
// listener on all addresses, it is the first address of this host that other hosts can reach.
func Reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	at := *tcp
	at.IP = net.IPv4(127, 0, 0, 1)
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return at.String() // without interfaces there is only the loopback address
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && (ip.IP.To4() != nil || at.IP.IsLoopback()) {
			at.IP = ip.IP
			if ip.IP.To4() != nil {
				break
			}
		}
	}
	return at.String()
}
