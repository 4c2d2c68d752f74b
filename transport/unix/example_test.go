// SPDX-License-Identifier: Apache-2.0

//go:build unix

package unix_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/yodel-rpc/yodel/transport/unix"
)

func Example() {
	folder, err := os.MkdirTemp("", "yodel")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)

	transport := unix.Transport{Mode: 0o660} // this user and its group
	listener, err := transport.Listen(filepath.Join(folder, "pricing.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	client, err := transport.Dial(context.Background(), listener.Addr().String())
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
	defer server.Close()
	question, err := io.ReadAll(server)
	fmt.Println(string(question), err)
	// Output: how much? <nil>
}
