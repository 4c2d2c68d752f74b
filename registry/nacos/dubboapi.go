// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// This file uses the part of the Open API that only the registry of Dubbo needs: the list of
// services.

// servicesPerPage is how many services Nacos lists in an answer.
const servicesPerPage = 500

// passes is how often services reads all pages of a list that changes meanwhile.
const passes = 5

// services returns the names of the services that begin with a prefix, sorted. The pages of Nacos
// are numbered, so a service is on no page that is read if one on an earlier page leaves meanwhile.
// Therefore services reads a list of several pages until it has not changed. If it returns an
// error, names may be missing.
func (r *Registry) services(ctx context.Context, prefix string) ([]string, error) {
	var last []string
	failed := errors.New("nacos: the list of services has changed each time that it was read")
	for range passes {
		names, pages, err := r.pages(ctx, prefix)
		slices.Sort(names)
		if few, ok := errors.AsType[tooFew](err); ok {
			last, failed = names, few
			continue
		}
		if err != nil || pages == 1 || slices.Equal(names, last) {
			return names, err
		}
		last = names
	}
	return last, failed
}

// A tooFew is the error of pages with fewer services than Nacos says there are. Some may have left
// while the pages were read.
type tooFew struct{ read, all int }

func (f tooFew) Error() string {
	return fmt.Sprintf("nacos: it says that there are %d services, and lists %d", f.all, f.read)
}

// pages returns the names of the services that begin with a prefix, and the number of pages. Nacos
// may have fewer services on a page than it was asked for, so the last page is that with which the
// number of services is reached that Nacos says there are.
func (r *Registry) pages(ctx context.Context, prefix string) (names []string, pages int, err error) {
	read := 0
	for page := 1; ; page++ {
		listed, all, err := r.servicesOf(ctx, prefix, page)
		if err != nil {
			return names, page, err
		}
		for _, name := range listed {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		read += len(listed)
		switch {
		case read >= all && len(listed) < servicesPerPage:
			return names, page, nil
		case len(listed) == 0 && read < all:
			return names, page, tooFew{read, all}
		case len(listed) == 0:
			return names, page, nil
		}
	}
}

// servicesOf returns the names of the services on a page of the list of services, and how many
// services Nacos says that all pages have.
func (r *Registry) servicesOf(ctx context.Context, prefix string, page int) (names []string, all int, err error) {
	q := url.Values{"namespaceId": {r.opts.Namespace}, "pageNo": {strconv.Itoa(page)}, "pageSize": {strconv.Itoa(servicesPerPage)}}
	if r.opts.V1 {
		q.Set("groupName", r.opts.Group)
		answer, err := r.ask(ctx, request{method: http.MethodGet, path: "/nacos/v1/ns/service/list", query: q})
		if err != nil {
			return nil, 0, err
		}
		var list struct {
			Count int      `json:"count"`
			Names []string `json:"doms"`
		}
		err = json.Unmarshal(answer, &list)
		return list.Names, list.Count, err
	}
	q.Set("groupNameParam", r.opts.Group)
	q.Set("serviceNameParam", prefix)
	answer, err := r.ask(ctx, request{method: http.MethodGet, path: "/nacos/v3/admin/ns/service/list", query: q})
	if err != nil {
		return nil, 0, err
	}
	var list struct {
		Count int `json:"totalCount"`
		Items []struct {
			Name  string `json:"name"`
			Group string `json:"groupName"`
		} `json:"pageItems"`
	}
	if err = unpack(answer, &list); err != nil {
		return nil, 0, err
	}
	for _, item := range list.Items {
		if item.Group != r.opts.Group {
			item.Name = "" // counts for the page
		}
		names = append(names, item.Name)
	}
	return names, list.Count, nil
}
