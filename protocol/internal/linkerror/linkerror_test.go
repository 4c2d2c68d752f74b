// SPDX-License-Identifier: Apache-2.0

package linkerror_test

import (
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// Each error says whether the call was executed, and only Unsent lets the client send the call
// elsewhere: it has a cause and no ID.
func TestErrorsSayWhetherTheCallWasExecuted(t *testing.T) {
	why := errors.New("why")
	call := &yodel.Call{Method: "Test.Echo", Reply: new(string)}
	for text, test := range map[string]struct {
		got          *yodel.Error
		notProcessed bool
		code         yodel.Code
		id           string
	}{
		"why":     {linkerror.Unsent(why), true, yodel.Unavailable, ""},
		"it is 5": {linkerror.Refused(yodel.NotFound, "YDL2001", "it is %d", 5), true, yodel.NotFound, "YDL2001"},
		"Test.Echo: a:1 speaks P, which has no streams": {linkerror.Lacks(call, "a:1", "P", "streams"), true, yodel.Unimplemented, ""},
		"Test.Echo: why": {linkerror.Unencoded(call, why), true, yodel.InvalidArgument, "YDL2103"},
		"Test.Echo: the request has 7 bytes, this client's limit is 5":                   {linkerror.LargeRequest(call, 7, 5), true, yodel.ResourceExhausted, "YDL2201"},
		"M: the reply from a:1 has 7 bytes, this client's limit is 5":                    {linkerror.LargeReply("M", "a:1", "7", 5), false, yodel.ResourceExhausted, "YDL2202"},
		"the reply from a:1 has 7 bytes, this client's limit is 5":                       {linkerror.LargeReply("", "a:1", "7", 5), false, yodel.ResourceExhausted, "YDL2202"},
		"Test.Echo: the reply from a:1 does not fit *string: why":                        {linkerror.Misfit(call, "a:1", why), false, yodel.Internal, "YDL2102"},
		"this client has no memory left for the reply from a:1; the method was executed": {linkerror.NoMemory("a:1"), false, yodel.ResourceExhausted, "YDL3007"},
		"Test.Echo: the metadata has 9 bytes in 2 pairs; this client's limits are 8 and 1": {
			linkerror.LargeMetadata(call, 9, 2, yodel.Limits{MaxMetadata: 8, MaxPairs: 1}), true, yodel.ResourceExhausted, "YDL2203",
		},
	} {
		if e := test.got; e.Message != text || e.Code != test.code || e.ID != test.id || e.NotProcessed != test.notProcessed {
			t.Errorf("got %+v, want %q", e, text)
		}
	}
	for _, e := range []*yodel.Error{linkerror.Unsent(why), linkerror.Unencoded(call, why), linkerror.Misfit(call, "a:1", why)} {
		if !errors.Is(e, why) {
			t.Errorf("%v has lost its cause", e)
		}
	}
}
