// SPDX-License-Identifier: Apache-2.0

package validate_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// region type

// A Booking has its rules in a method.
type Booking struct {
	Room   string   `json:"room"`
	Guests []Person `json:"guests"`
}

func (b *Booking) Validate() error {
	var v validate.Violations
	if b.Room == "" {
		v.Add("room", "required", "is required")
	}
	for i := range b.Guests {
		v.Within(fmt.Sprintf("guests[%d]", i), b.Guests[i].Validate())
	}
	return v.Err()
}

// endregion type

type Person struct {
	Age int `json:"age"`
}

func (p *Person) Validate() error {
	var v validate.Violations
	if p.Age < 0 {
		v.Add("age", "not_negative", "must not be negative")
	}
	return v.Err()
}

const Book yodel.Method[Booking, string] = "Hotel.Book"

func Example() {
	network := mem.New()
	l, err := network.Listen("hotel")
	if err != nil {
		fmt.Println(err)
		return
	}
	// region server
	server := yodel.NewServer(&yodel.ServerOptions{
		Middleware: []yodel.Middleware{validate.Messages()},
	})
	// endregion server
	Book.Handle(server, func(_ context.Context, b *Booking) (*string, error) {
		number := "B-1 for " + b.Room
		return &number, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("hotel"), &yodel.ClientOptions{Transport: network})

	// region client
	_, err = Book.Call(ctx, client, &Booking{Guests: []Person{{Age: 30}, {Age: -1}}})
	for _, broken := range validate.Of(err) {
		fmt.Printf("%s breaks the rule %s: %s\n", broken.Field, broken.Rule, broken.Message)
	}
	// endregion client
	fmt.Println(err)

	client.Close()
	stop()
	<-served
	// Output:
	// room breaks the rule required: is required
	// guests[1].age breaks the rule not_negative: must not be negative
	// invalid_argument: Hotel.Book: hotel: the request breaks a rule: room: is required (required); guests[1].age: must not be negative (not_negative) [YDL3701]
}
