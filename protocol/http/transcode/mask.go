// SPDX-License-Identifier: Apache-2.0

package transcode

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A fieldMask is the paths of a google.protobuf.FieldMask, with the names of the .proto file.
type fieldMask []string

// maxMask is how many bytes the paths of a mask may have that is made of a body. Nested objects
// would otherwise make a mask that is far larger than the body.
const maxMask = 256 << 10

var errMaskSize = errors.New("it sets more fields than a mask can name")

// maskField returns the only field of a message that is a mask, or nil.
func maskField(m protoreflect.MessageDescriptor) (found protoreflect.FieldDescriptor) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		switch {
		case f.Message() == nil || f.Message().FullName() != "google.protobuf.FieldMask":
		case found != nil || f.IsList():
			return nil
		default:
			found = f
		}
	}
	return found
}

// maskOf returns the paths of the fields that the body of a PATCH has. A service that gets no mask
// may replace the whole resource.
func (b *binding) maskOf(body []byte) (fieldMask, error) {
	if b.mask == nil || len(body) == 0 {
		return nil, nil
	}
	var root any
	if err := json.Unmarshal(body, &root); err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	w := new(maskWalk)
	if members, ok := root.(map[string]any); ok {
		if err := w.message(nil, members, b.field().Message()); err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
	}
	slices.Sort(w.paths)
	return w.paths, nil
}

// A maskWalk makes a mask of the objects of a body. Its depth is that of the body, which
// encoding/json limits.
type maskWalk struct {
	paths fieldMask
	size  int
}

// add adds the path of names.
func (w *maskWalk) add(names []string) error {
	for _, name := range names {
		w.size += len(name) + 1
	}
	if w.size > maxMask {
		return errMaskSize
	}
	w.paths = append(w.paths, strings.Join(names, "."))
	return nil
}

// message adds the paths of an object that is a message.
func (w *maskWalk) message(names []string, members map[string]any, m protoreflect.MessageDescriptor) error {
	for name, value := range members {
		f := fieldOf(m, name)
		if f == nil {
			return fmt.Errorf("%s has no field %.100q", m.FullName(), name)
		}
		path := append(names, string(f.Name()))
		inner, isObject := value.(map[string]any)
		var of protoreflect.FullName
		if f.Message() != nil && !f.IsList() && !f.IsMap() {
			of = f.Message().FullName()
		}
		var err error
		switch {
		case of == "google.protobuf.Struct" || of == "google.protobuf.Value":
			err = w.value(path, value)
		case of == "google.protobuf.Any":
			if inner["@type"] == nil {
				return fmt.Errorf("%s.%s has no @type", m.FullName(), f.Name())
			}
			err = w.add(path)
		case of != "" && isObject && len(inner) > 0:
			err = w.message(path, inner, f.Message())
		default: // a list or a map is replaced as a whole
			err = w.add(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// value adds the paths of any value in JSON.
func (w *maskWalk) value(names []string, value any) error {
	members, _ := value.(map[string]any)
	if len(members) == 0 {
		return w.add(names)
	}
	for name, inner := range members {
		if err := w.value(append(names, name), inner); err != nil {
			return err
		}
	}
	return nil
}

// queryMask returns the paths in a parameter. They have names of the .proto file, or of JSON, which
// have capital letters in place of underscores.
func queryMask(value string) fieldMask {
	if value == "" {
		return nil
	}
	paths := fieldMask(strings.Split(value, ","))
	for i, path := range paths {
		if !strings.Contains(path, "_") {
			paths[i] = snake(path)
		}
	}
	return paths
}

// json returns the mask in ProtoJSON. It fails for paths that ProtoJSON does not have.
func (m fieldMask) json() (json.RawMessage, error) {
	names := make([]string, len(m))
	for i, path := range m {
		names[i] = camel(path)
		if snake(names[i]) != path || !protoreflect.FullName(path).IsValid() {
			return nil, fmt.Errorf("a mask in ProtoJSON cannot have the path %.100q", path)
		}
	}
	return json.Marshal(strings.Join(names, ","))
}

// camel returns a name with a capital letter in place of each underscore and the letter behind it.
func camel(name string) string {
	var out []byte
	for i := range len(name) {
		switch c := name[i]; {
		case c == '_':
		case i > 0 && name[i-1] == '_' && 'a' <= c && c <= 'z':
			out = append(out, c-'a'+'A')
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

// snake reverses camel.
func snake(name string) string {
	var out []byte
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			out = append(out, '_')
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	return string(out)
}
