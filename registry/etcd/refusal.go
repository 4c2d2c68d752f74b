// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"regexp"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal returns why there is no connection. The library reports the reason only to calls that do
// not wait for a connection.
//
//nolint:contextcheck,nolintlint // the context of the caller has ended
func (s *store) refusal() string {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	err := s.client.ActiveConnection().Invoke(ctx, "/etcdserverpb.Maintenance/Status",
		// An empty message of any type encodes like an empty request.
		new(clientv3.StatusResponse), new(clientv3.StatusResponse), grpc.WaitForReady(false))
	switch status.Code(err) { //nolint:exhaustive // the others are answers
	case codes.OK:
		return "it is there now"
	case codes.DeadlineExceeded:
		return "nothing answers at this address"
	}
	return innermost(status.Convert(err).Message())
}

var (
	wrapped  = regexp.MustCompile(`^(?:connection error: desc = |last connection error: )*"?(?:transport: )?(.*?)"?$`)
	dialling = regexp.MustCompile(`^[Ee]rror while dialing: dial \S+ \S+ (?:connect: )?`)
	preface  = regexp.MustCompile(`error reading server preface|frame too large|HTTP/1`)
)

// innermost returns the original error message, without the text that gRPC adds around it.
func innermost(message string) string {
	if m := wrapped.FindStringSubmatch(message); m != nil {
		message = m[1]
	}
	message = dialling.ReplaceAllString(message, "")
	if preface.MatchString(message) {
		return "this is not an etcd server (" + message + ")"
	}
	return message
}
