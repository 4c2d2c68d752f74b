// SPDX-License-Identifier: Apache-2.0

package reflectcall

import "reflect"

// Outcome converts the results of a function with a typed reply to those of Func.Call. A function
// that returns neither a reply nor an error has failed with ErrNoReply, because its caller could
// not distinguish a nil reply from a reply of zeros. If the type of the reply has no content, the
// reply is an empty one, and there is no error.
func Outcome[Out any](out *Out, err error) (reply any, _ error) {
	if out == nil {
		return orNothing[Out](err)
	}
	return out, err
}

// orNothing is Outcome for a nil reply. It is a function of its own, so that Outcome is inlined.
func orNothing[Out any](err error) (any, error) {
	if err == nil && !HasNoContent(reflect.TypeFor[Out]()) {
		err = ErrNoReply
	}
	return new(Out), err
}
