// SPDX-License-Identifier: Apache-2.0

package hessian

// Copy appends the next value to dst, so that it needs no table of the stream: what the value
// shares with earlier values of the stream, it gets as a copy. Copy fails if it would append more
// than limit bytes, or read much more than the stream has.
func (r *Reader) Copy(dst []byte, limit int) ([]byte, error) {
	c := copying{Reader: r, to: &stream{b: dst, most: len(dst) + limit}}
	c.copy(0)
	return c.to.b, r.err
}

// Join appends values, each of which is a stream of its own, to dst as one stream. It fails if it
// would append more than limit bytes.
func Join(dst []byte, limit int, values ...[]byte) ([]byte, error) {
	to := &stream{b: dst, most: len(dst) + limit}
	for _, value := range values {
		c := copying{Reader: NewReader(value), to: to}
		c.copy(0)
		if c.err == nil && c.at != len(value) {
			c.failf("%d bytes follow the value", len(value)-c.at)
		}
		if c.err != nil {
			return dst, c.err
		}
	}
	return to.b, nil
}

// A stream is written.
type stream struct {
	b       []byte
	most    int // the largest length of b
	classes int // how many were defined
	objects int // how many lists, maps and objects were written
}

// A copying copies a value from a Reader to a stream. The tables of the two differ.
type copying struct {
	*Reader
	to      *stream
	classes map[int]int // the numbers of the Reader's classes in the stream
	objects map[int]int // the numbers of the Reader's lists, maps and objects in the stream
}

// copy copies one value. It reports false at the end of a list or a map.
func (c *copying) copy(depth int) bool {
	t := c.next()
	switch {
	case depth > maxDepth:
		c.set(errDepth)
	case len(c.to.b) > c.to.most:
		c.set(errBeyond)
	}
	if c.err != nil {
		return true
	}
	switch t.kind {
	case isRef:
		c.ref(int(t.n), depth)
		return true
	case isEnd:
		if depth == 0 {
			c.failf("a value was expected, not %v", t.kind)
		}
		return false
	case isList, isMap, isObject:
		c.begin(t)
	default:
		c.to.b = append(c.to.b, c.bytes[t.at:c.at]...)
		return true
	}
	for i := int64(0); (t.length < 0 || i < t.length) && c.err == nil; i++ {
		if !c.copy(depth + 1) {
			c.endOf(t, i)
			break
		}
	}
	if t.length < 0 {
		c.to.b = append(c.to.b, end)
	}
	return true
}

// begin writes the beginning of a list, a map or an object.
func (c *copying) begin(t token) {
	if c.objects == nil {
		c.objects = make(map[int]int)
	}
	if !c.spend(sharedSize) {
		return
	}
	c.objects[t.object] = c.to.objects
	c.to.objects++
	b := c.to.b
	switch {
	case t.kind == isObject:
		class := c.class(t.class) // may write its definition
		b = appendObject(c.to.b, class)
	case t.kind == isMap && t.typ == "":
		b = append(b, untypedMap)
	case t.kind == isMap:
		b = AppendText(append(b, typedMap), t.typ)
	case t.length < 0 && t.typ == "":
		b = append(b, variableList)
	case t.length < 0:
		b = AppendText(append(b, variableTyped), t.typ)
	case t.typ == "":
		b = appendLength(b, t.length)
	default:
		b = AppendInt(AppendText(append(b, fixedTyped), t.typ), int32(t.length)) //nolint:gosec // at most the length of the message
	}
	c.to.b = b
}

// class returns the number of a class in the stream, which it defines if it is not.
func (c *copying) class(n int) int {
	if to, ok := c.classes[n]; ok {
		return to
	}
	if c.classes == nil {
		c.classes = make(map[int]int)
	}
	from := &c.Reader.classes[n]
	c.to.b = appendClass(c.to.b, from.name, from.fields)
	c.classes[n] = c.to.classes
	c.to.classes++
	return c.classes[n]
}

// ref copies a reference. If the stream does not have its value, it copies the value.
func (c *copying) ref(n, depth int) {
	if to, ok := c.objects[n]; ok {
		c.to.b = AppendInt(append(c.to.b, reference), int32(to)) //nolint:gosec // at most the length of the message
		return
	}
	at := c.at
	c.at = c.Reader.objects[n]
	c.copy(depth + 1)
	c.at = at
}
