// SPDX-License-Identifier: Apache-2.0

package criticality_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// The class travels with the call, and with the calls that its handler makes.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	s := yodel.NewServer(nil)
	s.Handle("Report.Build", func(ctx context.Context) bool {
		return yodel.CallFrom(ctx).Criticality == criticality.Batch
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	c := yodel.Dial(l.Addr().String())

	var batch bool
	err = c.Do(ctx, &yodel.Call{
		Method:      "Report.Build",
		Args:        yodel.Values{},
		Reply:       yodel.Values{&batch},
		Criticality: criticality.Batch, // nobody waits for it: an overloaded server refuses it first
	})
	fmt.Println(batch, err)

	c.Close()
	stop()
	<-served
	// Output: true <nil>
}
