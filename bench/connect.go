// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// connectClient are the scenarios with the client program of connect-go, unchanged, on one
// connection of HTTP/2 without TLS.
var connectClient = []Scenario{overConnect(1), overConnect(10), overConnect(100), overConnect(1000)}

func overConnect(callers int) Scenario {
	plural := "s"
	if callers == 1 {
		plural = ""
	}
	return Scenario{
		Name: fmt.Sprintf("connect-%d", callers), Title: fmt.Sprintf("servers of the client of connect-go, %d caller%s", callers, plural),
		Group: "connect", Client: "connect-go", Load: closed(callers), Full: true, Peers: []string{"connect-go"}, Variants: wires,
	}
}
