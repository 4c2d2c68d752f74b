// SPDX-License-Identifier: Apache-2.0

// Package dubborecord reads and writes the records of Dubbo in registries. A record of an interface
// is the URL of a provider. A record of an application is an instance with the ports of its
// protocols, and its metadata has the interfaces.
package dubborecord

import (
	"cmp"
	"crypto/md5" //nolint:gosec // a name for the content, as Dubbo has it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Keys of the parameters of a URL, and of metadata.
const (
	keyApplication = "application"
	keyInterface   = "interface"
	keyVersion     = "version"
	keyGroup       = "group"
	keyWeight      = "weight"
	keyDisabled    = "disabled"
	keyInstance    = "yodel" // the instance as JSON, for clients of yodel

	// KeyRevision is the key of the revision in the metadata of an instance of an application.
	KeyRevision  = "dubbo.metadata.revision"
	keyEndpoints = "dubbo.endpoints"
	keyStorage   = "dubbo.metadata.storage-type"
)

// usualWeight is the weight that Dubbo assumes. It stands for the weight 1 of yodel.
const usualWeight = 100

// protocols are Dubbo's names of the protocols for which it has records, by yodel's names.
var protocols = []struct{ yodel, dubbo string }{{"dubbo", "dubbo"}, {"grpc", "tri"}, {"http", "tri"}}

// ErrProtocols is the error for a server that serves no protocol of Dubbo.
var ErrProtocols = errors.New("the server serves no protocol of Dubbo: add dubbo.Protocol, or package protocol/http for triple, to ServerOptions.Protocols")

// A Key identifies a service of Dubbo.
type Key struct{ Interface, Version, Group string }

// ParseKey returns the key that a name such as com.acme.Greeter or blue/com.acme.Greeter:1.0.0
// means. Without a group or a version, it means services of any.
func ParseKey(name string) Key {
	k := Key{Interface: name}
	if group, rest, ok := strings.Cut(k.Interface, "/"); ok {
		k.Group, k.Interface = group, rest
	}
	k.Interface, k.Version, _ = strings.Cut(k.Interface, ":")
	return k
}

// String returns the name of a service.
func (k Key) String() string {
	name := k.Interface
	if k.Group != "" {
		name = k.Group + "/" + name
	}
	if k.Version != "" {
		name += ":" + k.Version
	}
	return name
}

// Of returns the key of the service of an instance that is announced under a name.
func Of(name string, in discovery.Instance) Key {
	k := ParseKey(name)
	k.Version, k.Group = cmp.Or(k.Version, in.Version), cmp.Or(k.Group, in.Group)
	return k
}

// Takes reports whether a service is one that the key means.
func (k Key) Takes(version, group string) bool {
	return (k.Version == "" || k.Version == version) && (k.Group == "" || k.Group == group)
}

// served returns Dubbo's names of the protocols that an instance serves.
func served(in discovery.Instance) (names []string) {
	for _, p := range protocols {
		if slices.Contains(in.Protocols, p.yodel) && !slices.Contains(names, p.dubbo) {
			names = append(names, p.dubbo)
		}
	}
	return names
}

// known returns yodel's name of a protocol of Dubbo.
func known(name string) string {
	for _, p := range protocols {
		if p.dubbo == name {
			return p.yodel
		}
	}
	return name
}

// parameters returns what Dubbo and yodel say of a service of an instance in a protocol of Dubbo.
// Its load is left out, because Dubbo's consumers begin anew with a provider whose record has
// changed.
func parameters(application, protocol string, k Key, in discovery.Instance) (map[string]string, error) {
	in.CallRate, in.Inflight = 0, 0
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	q := map[string]string{
		keyApplication: application, keyInterface: k.Interface, "side": "provider", "dubbo": "2.0.2", "dynamic": "true", "deprecated": "false", "generic": "false",
		keyInstance: string(text),
	}
	if protocol == "dubbo" { // triple has protobuf
		q["serialization"], q["prefer.serialization"] = "hessian2", "hessian2"
	}
	for key, value := range map[string]string{keyVersion: k.Version, keyGroup: k.Group} {
		if value != "" {
			q[key] = value
		}
	}
	if in.Weight != 0 {
		q[keyWeight] = strconv.Itoa(in.Weight * usualWeight)
	}
	if in.State == inactive {
		q[keyDisabled] = "true"
	}
	return q, nil
}

const inactive = "inactive"

// A Provider is what the records of one instance in one service consist of.
type Provider struct {
	Application string
	Key         Key
	Instance    discovery.Instance
	host        string
	port        int
}

// NewProvider returns the provider for an instance that is announced under a name.
func NewProvider(application, name string, in discovery.Instance) (*Provider, error) {
	p := &Provider{Application: application, Key: Of(name, in), Instance: in}
	host, port, err := net.SplitHostPort(in.Addr)
	if err != nil {
		return nil, err
	}
	p.host = host
	if p.port, err = strconv.Atoi(port); err != nil {
		return nil, fmt.Errorf("%s has no port that is a number", in.Addr)
	}
	switch {
	case len(served(in)) == 0:
		return nil, ErrProtocols
	case strings.Contains(p.Key.Group, ","):
		return nil, fmt.Errorf("%s has the groups %s, and a provider of Dubbo has one", in.Addr, p.Key.Group)
	}
	return p, nil
}

// A Record is the record of a provider in one protocol.
type Record struct {
	Protocol   string // Dubbo's name
	Parameters map[string]string
}

// Records returns the record of the provider in each protocol.
func (p *Provider) Records() ([]Record, error) {
	var all []Record
	for _, protocol := range served(p.Instance) {
		about, err := parameters(p.Application, protocol, p.Key, p.Instance)
		if err != nil {
			return nil, err
		}
		all = append(all, Record{protocol, about})
	}
	return all, nil
}

// URLs returns the URL of the provider in each protocol.
func (p *Provider) URLs() ([]string, error) {
	records, err := p.Records()
	if err != nil {
		return nil, err
	}
	all := make([]string, len(records))
	for i, r := range records {
		q := make(url.Values, len(r.Parameters))
		for key, value := range r.Parameters {
			q.Set(key, value)
		}
		u := url.URL{Scheme: r.Protocol, Host: p.Instance.Addr, Path: "/" + p.Key.Interface, RawQuery: q.Encode()}
		all[i] = u.String()
	}
	return all, nil
}

// ParseURL returns the instance for the URL of a provider. It reports false for another service.
func ParseURL(text string, k Key) (in discovery.Instance, ok bool, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return in, false, err
	}
	about := make(map[string]string)
	for key, values := range u.Query() {
		about[key] = values[0]
	}
	if u.Port() == "" {
		return in, false, fmt.Errorf("%s://%s has no port", u.Scheme, u.Host)
	}
	return Record{u.Scheme, about}.Instance(u.Host, k)
}

// Instance returns the instance at an address that has the record. It reports false for another
// service.
func (r Record) Instance(addr string, k Key) (in discovery.Instance, ok bool, err error) {
	about := r.Parameters
	if !k.Takes(about[keyVersion], about[keyGroup]) || about["category"] != "" && about["category"] != "providers" {
		return in, false, nil
	}
	if text := about[keyInstance]; text != "" {
		err = json.Unmarshal([]byte(text), &in)
		in.Addr = addr
		return in, err == nil, err
	}
	in = discovery.Instance{
		Addr: addr, Protocols: []string{known(r.Protocol)}, Version: about[keyVersion], Group: about[keyGroup], Weight: usualWeight, Metadata: yodel.Metadata{},
	}
	// Dubbo-go writes a weight of 0 for the usual one.
	if n, bad := strconv.Atoi(about[keyWeight]); bad == nil && (n > 0 || n == 0 && !strings.HasPrefix(about["release"], "dubbo-golang")) {
		in.Weight = n
	}
	if about[keyDisabled] == "true" || about["enabled"] == "false" || in.Weight == 0 {
		in.State = inactive
	}
	for key, value := range about {
		switch key {
		case keyVersion, keyGroup, keyWeight, keyDisabled, keyInstance:
		default:
			in.Metadata[key] = value
		}
	}
	return in, true, err
}

// Merge returns the instances in order of their addresses. Instances of one address become one with
// the protocols of all.
func Merge(all []discovery.Instance) []discovery.Instance {
	byAddr := make(map[string]discovery.Instance, len(all))
	for _, in := range all {
		known, ok := byAddr[in.Addr]
		if !ok {
			byAddr[in.Addr] = in
			continue
		}
		joined := slices.Clone(known.Protocols)
		for _, p := range in.Protocols {
			if !slices.Contains(joined, p) {
				joined = append(joined, p)
			}
		}
		known.Protocols = joined
		byAddr[in.Addr] = known
	}
	merged := make([]discovery.Instance, 0, len(byAddr))
	for _, addr := range slices.Sorted(maps.Keys(byAddr)) {
		merged = append(merged, byAddr[addr])
	}
	return merged
}

// An Application is an instance of an application with all of its services.
type Application struct {
	Name     string
	Addr     string
	Revision string // of the metadata
	services map[string]service
	ports    []endpoint
}

// A service is a service in the metadata of an application.
type service struct {
	Name     string            `json:"name"`
	Group    string            `json:"group,omitempty"`
	Version  string            `json:"version,omitempty"`
	Protocol string            `json:"protocol"`
	Port     int               `json:"port"`
	Path     string            `json:"path"`
	Params   map[string]string `json:"params"`
}

// An endpoint is a protocol of an instance.
type endpoint struct {
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
}

// metadata is the metadata of an application.
type metadata struct {
	App      string             `json:"app"`
	Revision string             `json:"revision"`
	Services map[string]service `json:"services"`
}

// NewApplication returns the application for providers at one address, of which there is at least
// one.
func NewApplication(providers []*Provider) (*Application, error) {
	first := providers[0]
	a := &Application{Name: first.Application, Addr: first.Instance.Addr, services: make(map[string]service)}
	for _, p := range providers {
		in := p.Instance
		in.Addr, in.Started, in.Incarnation = "", time.Time{}, "" // instances with the same services share their metadata
		for _, protocol := range served(p.Instance) {
			about, err := parameters(p.Application, protocol, p.Key, in)
			if err != nil {
				return nil, err
			}
			a.services[p.Key.String()+":"+protocol] = service{
				Name: p.Key.Interface, Group: p.Key.Group, Version: p.Key.Version, Protocol: protocol, Port: p.port, Path: p.Key.Interface, Params: about,
			}
			if e := (endpoint{p.port, protocol}); !slices.Contains(a.ports, e) {
				a.ports = append(a.ports, e)
			}
		}
	}
	text, err := json.Marshal(a.services) // in the order of the keys
	if err != nil {
		return nil, err
	}
	sum := md5.Sum(append([]byte(a.Name+" "), text...)) //nolint:gosec // see above
	a.Revision = hex.EncodeToString(sum[:])
	return a, nil
}

// Metadata returns the metadata of the application as JSON.
func (a *Application) Metadata() ([]byte, error) {
	return json.Marshal(metadata{a.Name, a.Revision, a.services})
}

// InstanceMetadata returns the metadata of the instance.
func (a *Application) InstanceMetadata() (map[string]string, error) {
	ports, err := json.Marshal(a.ports)
	if err != nil {
		return nil, err
	}
	return map[string]string{keyEndpoints: string(ports), KeyRevision: a.Revision, keyStorage: "remote", "meta-v": "1.0.0"}, nil
}

// Instances returns the instances of a service in an application, for an instance at a host with
// metadata. About is the metadata of the application as JSON. Without it, every service of the
// mapping counts as served at every port.
func Instances(k Key, host string, of map[string]string, about []byte) (all []discovery.Instance, err error) {
	if len(about) == 0 {
		var ports []endpoint
		if err = json.Unmarshal([]byte(of[keyEndpoints]), &ports); err != nil {
			return nil, fmt.Errorf("the endpoints of an instance: %w", err)
		}
		for _, p := range ports {
			in, ok, bad := Record{p.Protocol, map[string]string{keyVersion: k.Version, keyGroup: k.Group}}.Instance(net.JoinHostPort(host, strconv.Itoa(p.Port)), k)
			if err = errors.Join(err, bad); ok {
				all = append(all, in)
			}
		}
		return all, err
	}
	var m metadata
	if err = json.Unmarshal(about, &m); err != nil {
		return nil, fmt.Errorf("the metadata of an application: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(m.Services)) {
		s := m.Services[key]
		if s.Name != k.Interface {
			continue
		}
		params := maps.Clone(s.Params)
		if params == nil {
			params = make(map[string]string)
		}
		params[keyVersion], params[keyGroup] = s.Version, s.Group
		in, ok, bad := Record{s.Protocol, params}.Instance(net.JoinHostPort(host, strconv.Itoa(s.Port)), k)
		if err = errors.Join(err, bad); ok {
			all = append(all, in)
		}
	}
	return all, err
}
