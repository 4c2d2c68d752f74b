// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"fmt"
	"net/url"
	"strings"
)

// String describes the resolver in errors and logs.
func (s *service) String() string { return fmt.Sprintf("service %q in %v", s.name, s.of) }

// String names the registry in logs.
func (r *Registry) String() string {
	servers := make([]string, 0, len(r.servers))
	for _, server := range r.servers {
		if u, err := url.Parse(server); err == nil {
			server = u.Host // without the password that the URL may contain
		}
		servers = append(servers, server)
	}
	return fmt.Sprintf("Nacos at %s (namespace %s, group %s)", strings.Join(servers, ","), r.opts.Namespace, r.opts.Group)
}
