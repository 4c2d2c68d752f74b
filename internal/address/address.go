// SPDX-License-Identifier: Apache-2.0

// Package address checks addresses HOST:PORT: those that a program dials or listens at, and those
// at which clients on other hosts reach a server.
package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Fault returns, as a text, why addr is no address HOST:PORT, or "". Its host may be empty.
func Fault(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	bad, ok := errors.AsType[*net.AddrError](err)
	switch {
	case strings.ContainsAny(addr, ", "):
		return "it has a comma or a space, and each address stands by itself"
	case ok:
		return bad.Err // without the address
	case err != nil:
		return err.Error()
	case strings.Contains(host, "@"):
		return "there is an @ before the host: the network of rpcx's addresses, as in tcp@host:port, is left out here"
	}
	if number, err := strconv.Atoi(port); err == nil && (number < 0 || number > 65535) {
		return "ports go from 0 to 65535"
	}
	return ""
}

// Reachable returns the address at which clients on other hosts reach a server with the listener
// at. That is announced, if it is not empty. If it is empty and the listener is on all addresses,
// it is the address from which this host sends to other networks, as its routes say. Without a
// route, it is the first address of an interface that works, and without such an interface, the
// loopback address. Reachable returns an error if clients cannot dial announced. It does not check
// the addresses of listeners that are not TCP.
func Reachable(at net.Addr, announced string) (string, error) {
	tcp, ok := at.(*net.TCPAddr)
	switch {
	case announced == "" && (!ok || !tcp.IP.IsUnspecified()):
		return at.String(), nil
	case announced == "":
		return netip.AddrPortFrom(ofHost(tcp.IP.To4() == nil), uint16(tcp.Port)).String(), nil //nolint:gosec // a port
	case ok:
		if err := dialable(announced); err != nil {
			return "", fmt.Errorf("yodel: clients cannot dial Instance.Addr %q: %w", announced, err)
		}
	}
	return announced, nil
}

// ofHost returns the address of this host. An IPv4 address is preferred.
func ofHost(with6 bool) netip.Addr {
	found := routed("udp4", elsewhere4)
	if !found.IsValid() && with6 {
		found = routed("udp6", elsewhere6)
	}
	if !found.IsValid() {
		found = working(with6)
	}
	return found
}

// These are addresses of other networks. The networks are reserved for documentation, and nothing
// is sent to them.
const (
	elsewhere4 = "192.0.2.1:9"
	elsewhere6 = "[2001:db8::1]:9"
)

// routed returns the address from which this host would send to another one. Connecting a UDP
// socket selects a route and sends nothing.
func routed(network, to string) netip.Addr {
	c, err := net.DialUDP(network, nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close() //nolint:errcheck // nothing was sent
	from, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok || !from.IP.IsGlobalUnicast() {
		return netip.Addr{}
	}
	return from.AddrPort().Addr().Unmap()
}

// working returns the first address of an interface that is not the loopback interface and has a
// connection.
func working(with6 bool) netip.Addr {
	found := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	interfaces, err := net.Interfaces()
	if err != nil {
		return found // without interfaces there is only the loopback address
	}
	for _, one := range interfaces {
		addrs, err := one.Addrs()
		if err != nil || one.Flags&net.FlagRunning == 0 || one.Flags&net.FlagUp == 0 || one.Flags&net.FlagLoopback != 0 {
			continue
		}
		for _, a := range addrs {
			prefix, ok := a.(*net.IPNet)
			if !ok || !prefix.IP.IsGlobalUnicast() {
				continue
			}
			addr, _ := netip.AddrFromSlice(prefix.IP)
			if addr = addr.Unmap(); addr.Is4() {
				return addr
			}
			if with6 && found.IsLoopback() {
				found = addr
			}
		}
	}
	return found
}

// dialable returns an error if no client can dial addr over TCP.
func dialable(addr string) error {
	if strings.Contains(addr, "://") {
		return errors.New("it is a URL; give HOST:PORT")
	}
	host, port, err := net.SplitHostPort(addr)
	if bad, ok := errors.AsType[*net.AddrError](err); ok {
		return errors.New(bad.Err)
	}
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(host)
	number, bad := strconv.Atoi(port)
	switch {
	case host == "":
		return errors.New("it has no host; leave Addr empty to announce the address of this host")
	case err == nil && ip.IsUnspecified():
		return errors.New("it stands for all addresses of a host; leave Addr empty to announce one of them")
	case err != nil && strings.ContainsAny(host, " \t\n,/?#@[]"):
		return errors.New("its host is not the name of a host")
	case port == "":
		return errors.New("it has no port")
	case bad == nil && (number < 1 || number > 65535), strings.ContainsAny(port, " \t\n,/"):
		return fmt.Errorf("its port %q is not a port", port)
	}
	return nil
}
