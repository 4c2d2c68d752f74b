// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Endpoints returns the addresses in a list that is separated by commas, without spaces around
// them. Each is HOST:PORT, or a URL with one of the schemes, which may have no port. The error says
// what is wrong with the first address that is neither. It does not contain secrets.
func Endpoints(list string, schemes ...string) ([]string, error) {
	var all []string
	var wrong error
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		if err := checkEndpoint(one, schemes); err != nil && wrong == nil {
			wrong = fmt.Errorf("the address %q: %w", one[strings.LastIndexByte(one, '@')+1:], err)
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		wrong = errors.New("no address is given")
	}
	return all, wrong
}

func checkEndpoint(one string, schemes []string) error {
	if strings.ContainsAny(one, " \t\n;") {
		return errors.New("commas separate addresses")
	}
	scheme, at, isURL := strings.Cut(one, "://")
	switch {
	case !isURL:
		return checkHostPort(one, false)
	case len(schemes) == 0:
		return errors.New("it has a scheme; give HOST:PORT")
	case !slices.Contains(schemes, scheme):
		return fmt.Errorf("the scheme %q is not one of %s", scheme, strings.Join(schemes, ", "))
	case strings.HasPrefix(scheme, "unix"):
		return nil
	}
	u, err := url.Parse(one)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err // without the URL, which may contain a password
	}
	if u.Host == "" {
		return fmt.Errorf("there is no host in %q", at)
	}
	return checkHostPort(u.Host, true)
}

// checkHostPort returns an error if at is not HOST:PORT.
func checkHostPort(at string, maybeNoPort bool) error {
	_, port, err := net.SplitHostPort(at)
	if bad, ok := errors.AsType[*net.AddrError](err); ok {
		if maybeNoPort && bad.Err == "missing port in address" {
			return nil
		}
		return errors.New(bad.Err)
	}
	if host, path, ok := strings.Cut(port, "/"); ok {
		return fmt.Errorf("%q follows the port %s; give HOST:PORT", "/"+path, host)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("the port %q is not a number from 1 to 65535", port)
	}
	return nil
}
