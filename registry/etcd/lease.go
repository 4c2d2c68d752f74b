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

// A lease is one that etcd has granted.
type lease struct {
	id      clientv3.LeaseID
	seconds int64 // as asked for: etcd may have granted more
}

// lease returns the lease of a key, which has ttl to go.
func (s *store) lease(ctx context.Context, key string, ttl time.Duration) (clientv3.LeaseID, error) {
	seconds := int64(math.Ceil(ttl.Seconds())) // its unit
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
// KeepAliveOnce begins one for each lease, which with a password is a login each time, the dearest
// thing that etcd does; and one that a proxy refuses it begins again without a pause.
type renewal struct {
	stream pb.Lease_LeaseKeepAliveClient
	end    context.CancelFunc
}

// idleRenewals is how many streams are kept. A server tells of one service after the other, and
// needs one.
const idleRenewals = 4

// renew keeps a lease alive, if etcd knows it.
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
		// It may have ended long ago, with its connection or the login.
	}
}

// newRenewal begins a stream that outlives ctx.
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
	if err == nil || errors.Is(err, io.EOF) { // which says that Recv knows more
		answer, err = r.stream.Recv()
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return err == nil && answer.GetTTL() > 0, err
}
