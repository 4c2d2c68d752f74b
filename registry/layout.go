// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A Layout is the format in which a registry writes instances. Its keys are PREFIX/SERVICE/NAME.
type Layout interface {
	// Name returns the last part of the key of the instance at addr.
	Name(addr string) string
	// Value returns the value that the registry stores under the key of in.
	Value(in discovery.Instance) ([]byte, error)
	// Instance reads a value that Value, or another program, wrote under a key that ends with name.
	// If it returns an instance with an address together with an error, the registry uses that
	// instance: other programs may write fields that this layout does not understand.
	Instance(name string, value []byte) (discovery.Instance, error)
}

// These are the layouts of this package.
var (
	// JSON writes the fields of discovery.Instance as JSON. The key is the address.
	JSON Layout = jsonLayout{}
	// RPCX is the format of rpcx: the key is network@address, and the value is a URL query with the
	// metadata. A record without the protocols of the instance is that of a server of rpcx, whose
	// protocol is "rpcx", or "rpcx+http" on the network "http". A client calls it with the Wire of
	// package protocol/rpcx.
	RPCX Layout = rpcxLayout{}
)

// escape returns name escaped as a single element of a path.
func escape(name string) string { return url.PathEscape(name) }

type jsonLayout struct{}

func (jsonLayout) Name(addr string) string { return escape(addr) }

func (jsonLayout) Value(in discovery.Instance) ([]byte, error) { return json.Marshal(in) }

func (jsonLayout) Instance(_ string, value []byte) (in discovery.Instance, err error) {
	if err = json.Unmarshal(value, &in); err == nil && in.Addr == "" {
		err = errors.New("the record has no addr")
	}
	return in, err
}

type rpcxLayout struct{}

// These are the metadata keys that rpcx understands, and those that only yodel understands.
const (
	rpcxWeight    = "weight"
	rpcxState     = "state"
	rpcxGroup     = "group" // may occur several times
	rpcxLatitude  = "latitude"
	rpcxLongitude = "longitude"
	rpcxCalls     = "calls" // a mean rate
	ourVersion    = "version"
	ourZone       = "zone"
	ourTag        = "tag" // may occur several times
	ourInflight   = "inflight"
	ourStarted    = "started"
	ourRun        = "incarnation"
	ourProtocol   = "protocol" // any number of times
)

const (
	rpcxNetwork = "tcp"
	// native is yodel's own protocol in Instance.Protocols.
	native = "yodel"
)

// protocols returns the protocols of a record. A record without any is that of a server of rpcx on
// a network.
func protocols(written []string, network string) []string {
	switch {
	case len(written) == 1 && written[0] == native: // as an empty list
		return nil
	case len(written) > 0:
		return written
	case network == rpcxNetwork, network == "unix":
		return []string{"rpcx"}
	}
	return []string{"rpcx+" + network}
}

func (rpcxLayout) Name(addr string) string { return rpcxNetwork + "@" + addr }

func (rpcxLayout) Value(in discovery.Instance) ([]byte, error) {
	q := make(url.Values)
	set := func(key, value string, unknown bool) {
		if !unknown {
			q.Set(key, value)
		}
	}
	for key, value := range in.Metadata {
		q.Set(key, value)
	}
	set(rpcxWeight, strconv.Itoa(in.Weight), in.Weight == 0)
	set(rpcxState, in.State, in.State == "")
	set(rpcxLatitude, float(in.Latitude), in.Latitude == 0 && in.Longitude == 0)
	set(rpcxLongitude, float(in.Longitude), in.Latitude == 0 && in.Longitude == 0)
	set(rpcxCalls, float(in.CallRate), in.CallRate == 0)
	set(ourInflight, strconv.Itoa(in.Inflight), in.Inflight == 0)
	set(ourVersion, in.Version, in.Version == "")
	set(ourZone, in.Zone, in.Zone == "")
	set(ourRun, in.Incarnation, in.Incarnation == "")
	set(ourStarted, in.Started.Format(time.RFC3339Nano), in.Started.IsZero())
	if in.Group != "" {
		q.Del(rpcxGroup) // removes a group in the metadata, which would be read as a second group
	}
	if len(in.Tags) > 0 {
		q.Del(ourTag)
	}
	for _, group := range strings.FieldsFunc(in.Group, func(r rune) bool { return r == ',' }) {
		q.Add(rpcxGroup, group)
	}
	for _, tag := range in.Tags {
		q.Add(ourTag, tag)
	}
	q[ourProtocol] = in.Protocols
	if len(in.Protocols) == 0 {
		q.Set(ourProtocol, native) // without it, the record would be that of a server of rpcx
	}
	return []byte(q.Encode()), nil
}

func (rpcxLayout) Instance(name string, value []byte) (in discovery.Instance, err error) {
	network, addr, ok := strings.Cut(name, "@")
	if !ok {
		network, addr = rpcxNetwork, name
	}
	if addr == "" {
		return in, fmt.Errorf("%q is no network@address", name)
	}
	q, err := url.ParseQuery(string(value)) // q has the valid parts even if there is an error
	number := func(key string) float64 {
		n, bad := strconv.ParseFloat(cmp.Or(q.Get(key), "0"), 64)
		if bad != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			err = errors.Join(err, fmt.Errorf("%s=%q is no number", key, q.Get(key)))
			return 0
		}
		return n
	}
	whole := func(key string) int {
		n, bad := strconv.Atoi(cmp.Or(q.Get(key), "0"))
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("%s=%q is no whole number", key, q.Get(key)))
			return 0
		}
		return n
	}
	in = discovery.Instance{
		Addr: addr, Group: strings.Join(q[rpcxGroup], ","), Version: q.Get(ourVersion), Weight: whole(rpcxWeight),
		Zone: q.Get(ourZone), Latitude: number(rpcxLatitude), Longitude: number(rpcxLongitude), State: q.Get(rpcxState),
		Tags: q[ourTag], Protocols: protocols(q[ourProtocol], network), CallRate: number(rpcxCalls), Inflight: whole(ourInflight), Incarnation: q.Get(ourRun),
	}
	if text := q.Get(ourStarted); text != "" {
		started, bad := time.Parse(time.RFC3339Nano, text)
		in.Started, err = started, errors.Join(err, bad)
	}
	ours := []string{
		rpcxWeight, rpcxState, rpcxGroup, rpcxLatitude, rpcxLongitude, rpcxCalls, ourVersion, ourZone, ourTag, ourInflight, ourStarted, ourRun,
		ourProtocol,
	}
	for key := range q {
		if !slices.Contains(ours, key) {
			in.Metadata = with(in.Metadata, key, q.Get(key))
		}
	}
	if network != rpcxNetwork {
		in.Metadata = with(in.Metadata, "network", network)
	}
	return in, err
}

func with(md yodel.Metadata, key, value string) yodel.Metadata {
	if md == nil {
		md = make(yodel.Metadata)
	}
	md[key] = value
	return md
}

func float(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
