// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
)

// The answer to an unknown method of JSON-RPC says that no method was executed.
func TestAnUnknownMethodOfJSONRPCIsNotProcessed(t *testing.T) {
	nc, err := net.Dial("tcp", serve(t, newServer(t, &yodel.ServerOptions{Protocols: []yodel.Protocol{jsonrpc.Protocol}})))
	must(t, err)
	defer nc.Close()
	_, err = fmt.Fprintln(nc, `{"jsonrpc":"2.0","id":1,"method":"Arith.Nothing","params":{}}`)
	must(t, err)
	line, err := bufio.NewReader(nc).ReadString('\n')
	must(t, err)
	if !strings.Contains(line, "-32601") || !strings.Contains(line, `"notProcessed":true`) {
		t.Errorf("got %s", line)
	}
}
