// SPDX-License-Identifier: Apache-2.0

package mem_test

import (
	"context"
	"fmt"
	"io"

	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	listener, err := network.Listen("pricing")
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := network.Dial(context.Background(), listener.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprint(client, "how much?")
	client.Close()

	server, err := listener.Accept()
	if err != nil {
		fmt.Println(err)
		return
	}
	question, err := io.ReadAll(server)
	fmt.Println(string(question), err)
	listener.Close()

	_, err = network.Dial(context.Background(), "pricing")
	fmt.Println(err)
	// Output:
	// how much? <nil>
	// dial mem pricing: connection refused: nobody listens there
}
