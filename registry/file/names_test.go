// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

// People read the names of folders. A name of 85 Chinese letters fits, and a longer one is refused.
func TestLettersStandInTheNamesOfFolders(t *testing.T) {
	folder := t.TempDir()
	r := file.New(folder, nil)
	for _, one := range [][2]string{
		{"订单服务.库存", "订单服务.库存"},
		{"Übung/日本", "Übung%252F日本"},
		{"u\u0308", "u%25CC%2588"}, // a mark: some file systems take it and the letter for one letter
		{"%E8%AE%A2", "%2525E8%2525AE%2525A2"},
		{"🛒", "%25F0%259F%259B%2592"},
		{"\xff", "%25FF"},
		{strings.Repeat("订", 85), strings.Repeat("订", 85)},
	} {
		must(t, r.Announce(t.Context(), one[0], discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
		if _, err := os.Stat(filepath.Join(folder, "yodel", one[1], "10.0.0.1:1")); err != nil {
			t.Errorf("%q: %v", one[0], err)
		}
	}
	long := strings.Repeat("订", 86)
	err := r.Announce(t.Context(), long, discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute)
	want := `the folder ` + folder + `: the name "` + long + `" needs 258 bytes, and there is a limit of 255 bytes`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	names, err := r.Services(t.Context())
	if err != nil || len(names) != 7 || !strings.Contains(strings.Join(names, " "), "u\u0308") {
		t.Errorf("the services are %q, %v", names, err)
	}
}
