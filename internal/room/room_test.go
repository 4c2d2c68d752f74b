// SPDX-License-Identifier: Apache-2.0

package room_test

import (
	"math"
	"reflect"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/room"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// heap returns how many bytes of memory are in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one may find a collection under way
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// What Map says is what maps of Go take, but for the rounding of the allocator, or a few times
// that.
func TestMapIsWhatMapsTake(t *testing.T) {
	var keys [900]string
	for i := range keys {
		keys[i] = string(rune('a' + i))
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[map[string]any](), reflect.TypeFor[map[int8]int8](), reflect.TypeFor[map[any]any](),
		reflect.TypeFor[map[int][120]byte](), reflect.TypeFor[map[int][500]byte](),
	} {
		for _, n := range []int{0, 1, 8, 9, 14, 15, 100, 900} {
			maps := make([]reflect.Value, max(2000/(n+1), 20))
			before := heap()
			counted := 0
			for i := range maps {
				maps[i] = reflect.MakeMap(typ)
				counted += int(room.Map(typ, 0))
				for k := range n {
					key := reflect.New(typ.Key()).Elem()
					switch key.Kind() {
					case reflect.String:
						key.SetString(keys[k])
					case reflect.Interface:
						key.Set(reflect.ValueOf(&keys[k]))
					default:
						key.SetInt(int64(k - 128))
					}
					counted += int(room.Entry(maps[i]))
					maps[i].SetMapIndex(key, reflect.Zero(typ.Elem()))
				}
			}
			taken := heap() - before
			t.Logf("%v with %d entries: %d bytes, counted %d", typ, n, taken/len(maps), counted/len(maps))
			if taken > counted+counted/8+4<<10 || counted > 5*taken+4<<10 {
				t.Errorf("%d maps %v with %d entries take %d bytes, and %d were counted", len(maps), typ, n, taken, counted)
			}
			runtime.KeepAlive(maps)
		}
	}
}

func TestTakeRefusesWhatDoesNotFit(t *testing.T) {
	r := room.For(100)
	all := int(r)
	for _, n := range []int{all + 1, math.MaxInt} {
		if r.Take(n, 1) || r.Take(n, math.MaxInt) || r.Take(2, uintptr(n)) {
			t.Errorf("%d bytes fit in %d", n, all)
		}
	}
	if !r.Take(math.MaxInt, 0) || !r.Take(all, 1) || r != 0 || r.Take(1, 1) {
		t.Errorf("%d of %d bytes are left", r, all)
	}
}
