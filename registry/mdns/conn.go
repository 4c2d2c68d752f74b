// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

// port and group are the port and the multicast address of RFC 6762.
const port = 5353

var group = &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: port}

// A conn sends packets to the multicast group and receives packets from it, on some network
// interfaces.
type conn struct {
	packets *ipv4.PacketConn
	names   []string // of the interfaces in Options; empty means all

	// mu also serializes sending, because the interface is set on the socket. Not every system can
	// set it for a single packet.
	mu         sync.Mutex
	interfaces []net.Interface
	looked     time.Time // when the interfaces were listed last
}

// lookEvery is how often a conn lists the network interfaces again: a laptop changes its network.
const lookEvery = 30 * time.Second

// open joins the group on the interfaces with these names. Without names, it uses all interfaces
// that are up and support multicast.
func open(names []string) (*conn, error) {
	// Binding to a multicast address lets other sockets use the same port. Each process has its own
	// socket, and so does every other program that speaks mDNS.
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(224, 0, 0, 0), Port: port})
	if err != nil {
		return nil, err
	}
	c := &conn{packets: ipv4.NewPacketConn(udp), names: names}
	_ = udp.SetReadBuffer(1 << 20)                            // many hosts answer at once; an error does no harm
	_ = c.packets.SetControlMessage(ipv4.FlagInterface, true) // not supported on every system: see read
	err = errors.Join(c.packets.SetMulticastTTL(255), c.packets.SetMulticastLoopback(true), c.joinLocked())
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// joinLocked joins the group on new interfaces, and drops the interfaces that no longer exist.
func (c *conn) joinLocked() error {
	c.looked = time.Now()
	chosen, err := choose(c.names)
	if err != nil {
		return err
	}
	var joined []net.Interface
	for _, in := range chosen {
		if !c.takesPartLocked(in.Index) {
			if failed := c.packets.JoinGroup(&in, group); failed != nil {
				err = errors.Join(err, fmt.Errorf("join the group on %s: %w", in.Name, failed))
				continue
			}
		}
		joined = append(joined, in)
	}
	c.interfaces = joined
	switch {
	case len(joined) == 0:
		return errors.Join(err, errors.New("no network interface takes part"))
	case len(c.names) > 0:
		return err
	}
	return nil // without names, one interface that has joined is enough
}

func choose(names []string) ([]net.Interface, error) {
	var chosen []net.Interface
	for _, name := range names {
		in, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		chosen = append(chosen, *in)
	}
	if len(names) > 0 {
		return chosen, nil
	}
	all, err := net.Interfaces()
	for _, in := range all {
		if in.Flags&net.FlagUp != 0 && in.Flags&net.FlagMulticast != 0 {
			chosen = append(chosen, in)
		}
	}
	return chosen, err
}

func (c *conn) close() { _ = c.packets.Close() } // no data is buffered

// send sends a message to the group. It fails if it could not send on any interface.
func (c *conn) send(m *dns.Msg) error {
	packet, err := m.Pack()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) > lookEvery {
		if err = c.joinLocked(); err != nil {
			return err
		}
	}
	sent := false
	for _, in := range c.interfaces {
		one := c.packets.SetMulticastInterface(&in)
		if one == nil {
			_, one = c.packets.WriteTo(packet, nil, group)
		}
		sent = sent || one == nil
		err = errors.Join(err, one)
	}
	if sent {
		return nil
	}
	return fmt.Errorf("send to the group: %w", err)
}

// read passes each message to handle, until the conn is closed or fails.
func (c *conn) read(handle func(*dns.Msg)) error {
	packet := make([]byte, 64<<10)
	for {
		n, about, from, err := c.packets.ReadFrom(packet)
		if err != nil {
			return err
		}
		m := new(dns.Msg)
		if about != nil && !c.takesPart(about.IfIndex) || m.Unpack(packet[:n]) != nil {
			continue
		}
		if at, ok := from.(*net.UDPAddr); m.Response && (!ok || at.Port != port) {
			continue // RFC 6762, section 6: a responder sends from port 5353
		}
		handle(m)
	}
}

func (c *conn) takesPart(index int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takesPartLocked(index)
}

func (c *conn) takesPartLocked(index int) bool {
	return slices.ContainsFunc(c.interfaces, func(in net.Interface) bool { return in.Index == index })
}

// follow reads in the background. It passes the messages to messages until ctx ends, and the reason
// why reading stopped to failed.
func (c *conn) follow(ctx context.Context) (messages <-chan *dns.Msg, failed chan error) {
	out, why := make(chan *dns.Msg, 256), make(chan error, 1)
	go func() {
		defer close(why) // so that the caller can wait for the goroutine
		why <- c.read(func(m *dns.Msg) {
			select {
			case out <- m:
			case <-ctx.Done():
			}
		})
	}()
	return out, why
}

// seconds returns a time to live in seconds. It rounds up, so that a record does not expire too
// early.
func seconds(d time.Duration) uint32 {
	return uint32(max(0, min((d+time.Second-1)/time.Second, 1<<31-1)))
}
