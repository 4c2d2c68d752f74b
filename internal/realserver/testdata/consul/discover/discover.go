// SPDX-License-Identifier: Apache-2.0

// Package discover stands for the package of Consul that finds servers with the APIs of clouds. A
// Consul in a test knows its servers, and the clients of all clouds are a quarter of what Go
// compiles for Consul.
package discover

import (
	"errors"
	"log"
)

// A Provider finds servers in one cloud.
type Provider interface {
	Addrs(args map[string]string, l *log.Logger) ([]string, error)
	Help() string
}

// Providers are those that Consul has by itself: none.
var Providers map[string]Provider

// A Discover finds no servers.
type Discover struct{}

// An Option changes nothing.
type Option func(*Discover) error

// New returns a Discover.
func New(...Option) (*Discover, error) { return &Discover{}, nil }

// WithUserAgent changes nothing.
func WithUserAgent(string) Option { return nil }

// WithProviders changes nothing.
func WithProviders(map[string]Provider) Option { return nil }

// Names returns the names of the providers.
func (*Discover) Names() []string { return nil }

// Addrs returns an error.
func (*Discover) Addrs(string, *log.Logger) ([]string, error) {
	return nil, errors.New("this Consul was built without the clients of clouds")
}
