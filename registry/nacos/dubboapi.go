// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// This file uses the part of the Open API that only the registry of Dubbo needs: the list of
// services.

// servicesPerPage is how many services Nacos lists in an answer.
const servicesPerPage = 500

// services returns the names of the services that begin with a prefix.
func (r *Registry) services(ctx context.Context, prefix string) (names []string, err error) {
	for page := 1; ; page++ {
		listed, err := r.servicesOf(ctx, prefix, page)
		if err != nil {
			return nil, err
		}
		for _, name := range listed {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		if len(listed) < servicesPerPage {
			return names, nil
		}
	}
}

// servicesOf returns the names of the services on a page of the list of services.
func (r *Registry) servicesOf(ctx context.Context, prefix string, page int) (names []string, err error) {
	q := url.Values{"namespaceId": {r.opts.Namespace}, "pageNo": {strconv.Itoa(page)}, "pageSize": {strconv.Itoa(servicesPerPage)}}
	if r.opts.V1 {
		q.Set("groupName", r.opts.Group)
		answer, err := r.ask(ctx, request{method: http.MethodGet, path: "/nacos/v1/ns/service/list", query: q})
		if err != nil {
			return nil, err
		}
		var list struct {
			Names []string `json:"doms"`
		}
		err = json.Unmarshal(answer, &list)
		return list.Names, err
	}
	q.Set("groupNameParam", r.opts.Group)
	q.Set("serviceNameParam", prefix)
	answer, err := r.ask(ctx, request{method: http.MethodGet, path: "/nacos/v3/admin/ns/service/list", query: q})
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Name  string `json:"name"`
			Group string `json:"groupName"`
		} `json:"pageItems"`
	}
	if err = unpack(answer, &list); err != nil {
		return nil, err
	}
	for _, item := range list.Items {
		if item.Group != r.opts.Group {
			item.Name = "" // counts for the page
		}
		names = append(names, item.Name)
	}
	return names, nil
}
