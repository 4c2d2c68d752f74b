// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/registry"
)

func TestEndpoints(t *testing.T) {
	for list, want := range map[string][]string{
		"a:1":                          {"a:1"},
		" a:1 , b:2,\n\tc:3, ":         {"a:1", "b:2", "c:3"},
		"https://a:1, http://b":        {"https://a:1", "http://b"},
		"[fd00::1]:2379":               {"[fd00::1]:2379"},
		"unix:///run/etcd, 10.0.0.1:1": {"unix:///run/etcd", "10.0.0.1:1"},
	} {
		got, err := registry.Endpoints(list, "http", "https", "unix")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v, want %q", list, got, err, want)
		}
	}
	for list, want := range map[string]string{
		"":                       "no address is given",
		" , ":                    "no address is given",
		"a":                      `the address "a": missing port in address`,
		"a:1, b":                 `the address "b": missing port in address`,
		"a:port":                 `the port "port" is not a number from 1 to 65535`,
		"a:70000":                `the port "70000" is not a number from 1 to 65535`,
		"a:":                     `the port "" is not a number from 1 to 65535`,
		"a:1;b:2":                "commas separate addresses",
		"a:1 b:2":                "commas separate addresses",
		"a:1/chroot":             `"/chroot" follows the port 1; give HOST:PORT`,
		"tcp://a:1":              `the scheme "tcp" is not one of http, https, unix`,
		"https:/a:1":             "too many colons in address",
		"https://":               `there is no host in ""`,
		"http://a:x":             `invalid port ":x" after host`,
		"http://ann:secret@a:1x": `the address "a:1x": invalid port ":1x" after host`,
		"ftp://ann:secret@a:1":   `the address "a:1": the scheme "ftp" is not one of http, https, unix`,
	} {
		_, err := registry.Endpoints(list, "http", "https", "unix")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: got %v, want %s", list, err, want)
		}
	}
	if _, err := registry.Endpoints("redis://a:1"); err == nil || !strings.Contains(err.Error(), "it has a scheme; give HOST:PORT") {
		t.Errorf("a URL where none is allowed: %v", err)
	}
}
