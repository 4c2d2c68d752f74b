// SPDX-License-Identifier: Apache-2.0

package pbstruct_test

import (
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel/codec/pbstruct"
)

// region message

// An Item is a message of Protocol Buffers without generated code.
type Item struct {
	SKU   string    `pb:"1"`
	Count int32     `pb:"2"`
	Price int64     `pb:"3,zigzag"`
	Note  *string   `pb:"4"` // optional
	Tags  []string  `pb:"5"`
	At    time.Time `pb:"6"`
}

// endregion message

func Example() {
	b, err := pbstruct.Codec.Append(nil, &Item{SKU: "K-1", Count: 2, Price: -1, Tags: []string{"new"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	var item Item
	err = pbstruct.Codec.Decode(b, &item)
	fmt.Printf("% x\n%s %d %d %s %v\n", b, item.SKU, item.Count, item.Price, item.Tags, err)
	// Output:
	// 0a 03 4b 2d 31 10 02 18 01 2a 03 6e 65 77
	// K-1 2 -1 [new] <nil>
}
