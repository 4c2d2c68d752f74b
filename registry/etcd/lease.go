// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A lease is a lease that etcd has granted.
type lease struct {
	id      clientv3.LeaseID
	seconds int64 // the duration that was requested; etcd may have granted more
}

// lease returns a lease of ttl for a key. It renews the key's lease, or requests a new one.
func (s *store) lease(ctx context.Context, key string, ttl time.Duration) (clientv3.LeaseID, error) {
	seconds := int64(math.Ceil(ttl.Seconds())) // the unit of etcd
	s.mu.Lock()
	old, ok := s.leases[key]
	s.mu.Unlock()
	if ok && old.seconds == seconds {
		alive, err := s.renew(ctx, old.id)
		if alive || err != nil {
			return old.id, err
		}
	}
	granted, err := s.client.Grant(ctx, seconds)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[key] = lease{granted.ID, seconds}
	return granted.ID, nil
}

// A renewal is a stream over which leases are kept alive, one after the other. The library's
// KeepAliveOnce opens a stream for each lease. With a password, each stream is a login, which is
// the most expensive operation of etcd. If a proxy refuses the stream, KeepAliveOnce also opens it
// again without a pause.
type renewal struct {
	stream pb.Lease_LeaseKeepAliveClient
	end    context.CancelFunc
}

// idleRenewals is the maximum number of idle streams. A server announces its services one after the
// other, so it needs one stream.
const idleRenewals = 4

// renew keeps a lease alive, and reports whether etcd still knows it.
func (s *store) renew(ctx context.Context, id clientv3.LeaseID) (alive bool, err error) {
	for {
		var r renewal
		kept := true
		select {
		case r = <-s.renewals:
		default:
			kept = false
			if r, err = s.newRenewal(ctx); err != nil {
				return false, err
			}
		}
		if alive, err = r.renew(ctx, id); err == nil {
			select {
			case s.renewals <- r:
			default:
				r.end()
			}
			return alive, nil
		}
		r.end()
		if !kept || ctx.Err() != nil {
			return false, clientv3.ContextError(ctx, err)
		}
		// The idle stream may have ended long ago, with its connection or its login. Try the next
		// one.
	}
}

// newRenewal opens a stream that outlives ctx.
func (s *store) newRenewal(ctx context.Context) (renewal, error) {
	life, end := context.WithCancel(s.life)
	stop := context.AfterFunc(ctx, end)
	leases := pb.NewLeaseClient(s.client.ActiveConnection())
	stream, err := leases.LeaseKeepAlive(clientv3.WithRequireLeader(life), grpc.WaitForReady(true)) //nolint:contextcheck // it outlives ctx
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		return renewal{}, clientv3.ContextError(ctx, err)
	}
	return renewal{stream, end}, nil
}

func (r renewal) renew(ctx context.Context, id clientv3.LeaseID) (alive bool, err error) {
	stop := context.AfterFunc(ctx, r.end)
	err = r.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	var answer *pb.LeaseKeepAliveResponse
	if err == nil || errors.Is(err, io.EOF) { // io.EOF means that Recv returns the cause
		answer, err = r.stream.Recv()
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return err == nil && answer.GetTTL() > 0, err
}
