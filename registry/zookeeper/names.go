// SPDX-License-Identifier: Apache-2.0

package zookeeper

import "strings"

// String names the store in errors.
func (s *store) String() string { return "ZooKeeper at " + strings.Join(s.servers, ",") }
