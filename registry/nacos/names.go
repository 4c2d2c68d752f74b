// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"fmt"
	"net/url"
	"strings"
)

// String describes the resolver in errors and logs.
func (s *service) String() string {
	servers := make([]string, 0, len(s.of.servers))
	for _, server := range s.of.servers {
		if u, err := url.Parse(server); err == nil {
			server = u.Host // without the password that the URL may contain
		}
		servers = append(servers, server)
	}
	return fmt.Sprintf("service %q in Nacos at %s (namespace %s, group %s)", s.name, strings.Join(servers, ","), s.of.opts.Namespace, s.of.opts.Group)
}
