// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/fallback"
)

func Example() {
	const suggest yodel.Method[string, []string] = "Shop.Suggest"
	client := yodel.NewClient(discovery.Static(), &yodel.ClientOptions{ // no instance runs
		Middleware: []yodel.Middleware{fallback.To([]string{"bestseller"}, string(suggest))},
	})
	defer client.Close()

	call := &yodel.Call{}
	user := "ali"
	suggestions, err := suggest.Do(context.Background(), client, call, &user)
	fmt.Println(*suggestions, err)
	fmt.Println("fallback because it is", call.Trailer[fallback.Key])
	// Output:
	// [bestseller] <nil>
	// fallback because it is unavailable
}
