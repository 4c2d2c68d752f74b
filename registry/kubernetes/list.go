// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// perPage is how many slices a list request asks for at a time.
const perPage = 500

// List implements registry.Lister: it returns the names of the folders below prefix in the keys of
// all records of the namespace. The API server sends the records too, because it cannot leave them
// out.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	if s.err != nil {
		return nil, s.err
	}
	r := request{
		method: http.MethodGet, path: path(s.api.Namespace, ""),
		query: url.Values{"labelSelector": {labelKeys}, "limit": {strconv.Itoa(perPage)}},
	}
	var names []string
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []slice `json:"items"`
		}
		if err := s.api.do(ctx, r, &page); err != nil {
			return nil, err
		}
		for i := range page.Items {
			rest, ok := strings.CutPrefix(page.Items[i].Metadata.Annotations[annotationKey], prefix)
			if name, _, below := strings.Cut(rest, "/"); ok && below {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)
		if page.Metadata.Continue == "" {
			return names, nil
		}
		r.query.Set("continue", page.Metadata.Continue)
	}
}
