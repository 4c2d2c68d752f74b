// SPDX-License-Identifier: Apache-2.0

package accept_test

import (
	"fmt"
	"net"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/accept"
)

func ExampleAllow() {
	office, err := accept.Allow("10.0.0.0/8", "::1")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(office(connectionFrom("10.1.2.3")))
	fmt.Println(office(connectionFrom("192.0.2.1")))
	// Output:
	// <nil>
	// 192.0.2.1 is not allowed, only "10.0.0.0/8, ::1" is
}

func ExampleDeny() {
	outsiders, err := accept.Deny("192.0.2.0/24")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(outsiders(connectionFrom("10.1.2.3")))
	fmt.Println(outsiders(connectionFrom("192.0.2.1")))
	_, err = accept.Deny("192.0.2.1/24")
	fmt.Println(err)
	// Output:
	// <nil>
	// 192.0.2.1 is denied by "192.0.2.0/24"
	// accept pattern "192.0.2.1/24": an address inside a range: write "192.0.2.0/24" or "192.0.2.1"
}

// Deny comes first, so that refused networks do not use up the rate.
func ExampleRate() {
	outsiders, err := accept.Deny("192.0.2.0/24")
	if err != nil {
		fmt.Println(err)
		return
	}
	// region rate
	rate := &accept.Rate{PerSecond: 500, PerAddress: 0.1, AddressBurst: 2}
	server := yodel.NewServer(&yodel.ServerOptions{Accept: accept.All(outsiders, rate.Accept)})
	// endregion rate
	for range 3 {
		fmt.Println(rate.Accept(connectionFrom("203.0.113.7")))
	}
	fmt.Println(rate.Accept(connectionFrom("203.0.113.8")))
	fmt.Printf("%+v %v\n", rate.Stats(), server != nil)
	// Output:
	// <nil>
	// <nil>
	// too many new connections from 203.0.113.7 at a time: accept.Rate.PerAddress
	// <nil>
	// {Accepted:3 RefusedByAddress:1 RefusedByAll:0} true
}

func connectionFrom(ip string) net.Conn { return peer{addr: tcp(ip)} }
