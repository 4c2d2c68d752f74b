// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// figures are the numbers of docs/discovery.md about lists of services. Each is a submatch of a
// pattern in a file, and is in a line that begins with row.
var figures = []struct{ row, text, file, pattern string }{
	{"| etcd", "in pages of %s keys", "registry/etcd/names.go", `listKeys = (\d+)`},
	{"| etcd", "or a %sth of all", "registry/etcd/names.go", `listPart = (\d+)`},
	{"| Consul", "%s bytes for each entry", "registry/consul/record.go", `longest += (\d+)`},
	{"| Nacos", "%s in a page", "registry/nacos/dubboapi.go", `servicesPerPage = (\d+)`},
	{"| Nacos", "each of %s times that it is read", "registry/nacos/dubboapi.go", `passes = (\d+)`},
	{"| Nacos", "%s characters for an escaped name", "registry/nacos/instance.go", `maxService += (\d+)`},
	{"| Nacos", "%s characters for the metadata", "registry/nacos/instance.go", `maxMetadata = (\d+)`},
	{"| Kubernetes", "%s in a page", "registry/kubernetes/registry.go", `listed = (\d+)`},
	{"| Kubernetes", "%s KiB for a record", "registry/kubernetes/registry.go", `maxAnnotations, aside = (\d+) << 10`},
	{"| multicast DNS", "within %s ms", "registry/mdns/browse.go", `gathering = (\d+) \* time.Millisecond`},
	{"| multicast DNS", "%s instances in a process", "registry/mdns/browse.go", `maxInstances, maxHosts = ([\d_]+)`},
	{"| a folder", "%s bytes for a name", "registry/file/escape.go", `maxName = (\d+)`},
	{"| fixed addresses", "%s methods of a server", "inspect/fleet/bound.go", `maxMethods = (\d+)`},
	{"A list that is expensive", "The tests list %s services", "conformance/governed/lists.go", `"governed.services", ([\d_]+)`},
	{"A list that is expensive", "with %s changes of a rule", "conformance/governed/lists.go", `"governed.history", (\d+)`},
	{"20,000 keys", "%s keys of other programs", "conformance/governed/lists.go", `"governed.foreign", ([\d_]+)`},
	{"20,000 keys", "and %s services in the other registries", "conformance/governed/lists.go", `"governed.announced", (\d+)`},
	{"20,000 keys", "`make before-end` lists %s beside a million", ".ci/before-end", `-governed.services=(\d+) -governed.foreign=1000000 `},
	{"20,000 keys", "with %s changes each", ".ci/before-end", `-governed.history=(\d+)`},
	{"20,000 keys", "%s in ZooKeeper, Consul and Nacos", "registry/zookeeper/rules_test.go", `holds = ([\d_]+)`},
	{"20,000 keys", "%s in ZooKeeper, Consul and Nacos", "registry/consul/rules_test.go", `holds = ([\d_]+)`},
	{"20,000 keys", "%s in ZooKeeper, Consul and Nacos", "registry/nacos/list_test.go", `holds = ([\d_]+)`},
	{"20,000 keys", "%s in ZooKeeper, Consul and Nacos", ".ci/before-end", `-governed.announced=(\d+)`},
	{"20,000 keys", "and %s in Kubernetes", "registry/kubernetes/list_test.go", `holds = ([\d_]+)`},
}

// The figures of docs/discovery.md about lists of services are those of the code and of the tests.
func TestFiguresOfLists(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	lines := strings.Split(read("docs/discovery.md"), "\n")
	for _, f := range figures {
		found := regexp.MustCompile(f.pattern).FindStringSubmatch(read(f.file))
		if found == nil {
			t.Errorf("%s has no %s", f.file, f.pattern)
			continue
		}
		want, said := fmt.Sprintf(f.text, withCommas(found[1])), false
		for _, line := range lines {
			said = said || strings.HasPrefix(line, f.row) && strings.Contains(line, want)
		}
		if !said {
			t.Errorf("docs/discovery.md does not say %q in a line that begins with %q, as %s does", want, f.row, f.file)
		}
	}
}

// withCommas returns a number of Go as documents write it: 10_000 and 10000 become 10,000.
func withCommas(number string) string {
	number = strings.ReplaceAll(number, "_", "")
	for at := len(number) - 3; at > 0; at -= 3 {
		number = number[:at] + "," + number[at:]
	}
	return number
}
