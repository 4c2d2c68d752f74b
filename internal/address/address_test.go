// SPDX-License-Identifier: Apache-2.0

package address_test

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/address"
)

// reachable makes a process of the test print the address of a listener and end.
var reachable = flag.String("address.reachable", "", "the address of a listener, to print how clients reach it")

func TestReachable(t *testing.T) {
	if *reachable != "" {
		at, err := net.ResolveTCPAddr("tcp", *reachable)
		if err != nil {
			t.Fatal(err)
		}
		got, err := address.Reachable(at, "")
		fmt.Println("reachable:", got, err)
		return
	}
	if got, err := address.Reachable(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 80}, ""); err != nil || got != "10.0.0.7:80" {
		t.Errorf("of one address: %s, %v", got, err)
	}
	all, err := address.Reachable(&net.TCPAddr{IP: net.IPv6unspecified, Port: 80}, "")
	if err != nil {
		t.Fatal(err)
	}
	at, err := net.ResolveTCPAddr("tcp", all)
	if err != nil || at.IP.IsUnspecified() || at.Port != 80 {
		t.Errorf("of all addresses: %s, %v", at, err)
	}
}

// These commands make network interfaces.
const (
	withBridge = `ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ` // it is down
	withVIP    = `ip link set lo up; ip addr add 10.9.9.9/32 dev lo; `
	withOther  = `ip link add other type veth peer name peer; ip addr add 10.1.0.1/24 dev other; ip link set other up; ip link set peer up; `
	withWires  = `ip link add eth0 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up; `
	withIPv4   = withWires + `ip addr add 10.0.0.5/24 dev eth0; `
	withIPv6   = withWires + `ip addr add fd00::5/64 dev eth0 nodad; `
	route4     = `ip route add default via 10.0.0.1; `
	route6     = `ip route add default via fd00::1; `
)

// TestReachableByTheRoute announces from hosts with several interfaces. Each is a network
// namespace.
func TestReachableByTheRoute(t *testing.T) {
	if out, err := exec.Command("unshare", "--net", "--map-root-user", "sh", "-c", withIPv4).CombinedOutput(); err != nil {
		t.Skipf("this machine has no network namespaces: %v: %s", err, out)
	}
	const all = "[::]:80"
	for _, host := range []struct{ name, makes, listener, want string }{
		{"a bridge that is down, and a virtual address", withBridge + withVIP + withIPv4 + route4, all, "10.0.0.5:80"},
		{"two networks", withOther + withIPv4 + route4, all, "10.0.0.5:80"},
		{"without a route", withBridge + withVIP + withIPv4, all, "10.0.0.5:80"},
		{"both protocols", withIPv6 + `ip addr add 10.0.0.5/24 dev eth0; ` + route4 + route6, all, "10.0.0.5:80"},
		{"IPv6", withBridge + withIPv6 + route6, all, "[fd00::5]:80"},
		{"IPv6 without a route", withBridge + withIPv6, all, "[fd00::5]:80"},
		{"IPv6, and a listener for IPv4", withIPv6 + route6, "0.0.0.0:80", "127.0.0.1:80"},
		{"no network", withBridge + withVIP, all, "127.0.0.1:80"},
	} {
		t.Run(host.name, func(t *testing.T) {
			c := exec.Command("unshare", "--net", "--map-root-user", "sh", "-c", "set -e; "+host.makes+`exec "$0" "$@"`,
				os.Args[0], "-test.run=^TestReachable$", "-address.reachable="+host.listener)
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "reachable: "+host.want+" <nil>\n") {
				t.Errorf("want %s: %v\n%s", host.want, err, out)
			}
		})
	}
}

func TestAnAddressThatClientsCannotDial(t *testing.T) {
	tcp := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	for addr, why := range map[string]string{
		":8972":               "it has no host",
		"0.0.0.0:8972":        "it stands for all addresses",
		"[::]:8972":           "it stands for all addresses",
		"10.0.0.1":            "missing port",
		"10.0.0.1:":           "it has no port",
		"10.0.0.1:0":          "is not a port",
		"10.0.0.1:70000":      "is not a port",
		"10.0.0.1:-1":         "is not a port",
		"http://10.0.0.1:80":  "it is a URL",
		"shop.example/x:80":   "not the name of a host",
		" 10.0.0.1:80":        "not the name of a host",
		"10.0.0.1:80 ":        "is not a port",
		"10.0.0.1:1,10.0.0.2": "is not a port",
		"a,b:80":              "not the name of a host",
		"fe80::1:80":          "too many colons",
	} {
		_, err := address.Reachable(tcp, addr)
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), fmt.Sprintf("%q", addr)) {
			t.Errorf("%q: got %v, want %s", addr, err, why)
		}
	}
	for _, addr := range []string{"10.0.0.1:80", "[fd00::1]:80", "[fe80::1%eth0]:80", "shop.example:80", "shop_1:http"} {
		if got, err := address.Reachable(tcp, addr); err != nil || got != addr {
			t.Errorf("%q: %s, %v", addr, got, err)
		}
	}
	if got, err := address.Reachable(&net.UnixAddr{Name: "/run/shop", Net: "unix"}, "/run/shop"); err != nil || got != "/run/shop" {
		t.Error(got, err)
	}
}

func TestFault(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8972":      "",
		":0":                  "",
		"[::1]:65535":         "",
		"shop.example:http":   "",
		"localhost":           "missing port in address",
		"tcp://10.0.0.1:80":   "too many colons in address",
		"[::1:80":             "missing ']' in address",
		"tcp@10.0.0.1:80":     "there is an @ before the host: the network of rpcx's addresses, as in tcp@host:port, is left out here",
		"10.0.0.1:65536":      "ports go from 0 to 65535",
		"10.0.0.1:-1":         "ports go from 0 to 65535",
		"10.0.0.1:1,10.0.0.2": "it has a comma or a space, and each address stands by itself",
		" 10.0.0.1:80":        "it has a comma or a space, and each address stands by itself", //nolint:gocritic // with the space
	} {
		if got := address.Fault(addr); got != want {
			t.Errorf("%q: got %q, want %q", addr, got, want)
		}
	}
}
