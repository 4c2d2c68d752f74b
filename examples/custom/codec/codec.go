// SPDX-License-Identifier: Apache-2.0

// Package codec is an example of a codec of your own: it encodes messages that are url.Values or
// map[string]string as application/x-www-form-urlencoded, for example "color=red&size=7".
//
// A form has no types and no order of keys. Append sorts the keys, so equal messages have equal
// bytes. A key without values is not encoded.
package codec

import (
	"fmt"
	"net/url"

	"github.com/yodel-rpc/yodel"
)

// region codec

// Form is the codec. Give it to clients as ClientOptions.Codec, and to servers in
// ServerOptions.Codecs.
var Form yodel.Codec = form{}

type form struct{}

// Name implements yodel.Codec. Both sides know the codec by this name.
func (form) Name() string { return "form" }

// Append implements yodel.Codec. The message may be a value or a pointer.
func (form) Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case url.Values:
		return append(dst, v.Encode()...), nil
	case map[string]string:
		all := make(url.Values, len(v))
		for key, value := range v {
			all.Set(key, value)
		}
		return append(dst, all.Encode()...), nil
	case *url.Values:
		if v != nil {
			return form{}.Append(dst, *v)
		}
	case *map[string]string:
		if v != nil {
			return form{}.Append(dst, *v)
		}
	}
	return nil, fmt.Errorf("a form is url.Values or map[string]string, not %T", v)
}

// Decode implements yodel.Codec. It replaces what v points to. The strings in it are a copy of src,
// because the caller reuses src.
func (form) Decode(src []byte, v any) error {
	all, err := url.ParseQuery(string(src))
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case *url.Values:
		if v != nil {
			*v = all
			return nil
		}
	case *map[string]string:
		if v != nil {
			*v, err = single(all)
			return err
		}
	}
	return fmt.Errorf("a form is decoded into a *url.Values or *map[string]string that is not nil; this is %T", v)
}

// single returns the values of keys that have one value each.
func single(all url.Values) (map[string]string, error) {
	m := make(map[string]string, len(all))
	for key, values := range all {
		if len(values) > 1 {
			return nil, fmt.Errorf("%q has %d values, and map[string]string has room for one", key, len(values))
		}
		m[key] = values[0]
	}
	return m, nil
}

// endregion codec
