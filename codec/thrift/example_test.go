// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"fmt"

	"github.com/yodel-rpc/yodel/codec/thrift"
)

// A Work is a message of Thrift without generated code.
type Work struct {
	A       int32   `thrift:"a,1"`
	B       int32   `thrift:"b,2"`
	Comment *string `thrift:"comment,3"` // optional
}

func Example() {
	b, err := thrift.Compact.Append(nil, &Work{A: 6, B: 7, Comment: new("later")})
	if err != nil {
		fmt.Println(err)
		return
	}
	var work Work
	if err = thrift.Compact.Decode(b, &work); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes: %d, %d, %s\n", len(b), work.A, work.B, *work.Comment)
	// Output: 12 bytes: 6, 7, later
}
