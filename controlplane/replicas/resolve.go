// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package replicas

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
)

// Resolve returns a function that looks up the replicas in a list. Each item is host:port; a name
// is resolved to all of its addresses, like that of a headless service.
func Resolve(list []string) (func(context.Context) ([]string, error), error) {
	type place struct{ host, port string }
	places := make([]place, 0, len(list))
	for _, item := range list {
		host, port, err := net.SplitHostPort(item)
		if err != nil || host == "" {
			return nil, fmt.Errorf("%q is not a replica: write host:port, such as istiod-replicas.istio-system.svc:8080", item)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%q is not a replica: its port is not a number from 1 to 65535", item)
		}
		places = append(places, place{host, port})
	}
	return func(ctx context.Context) ([]string, error) {
		var out []string
		var problems []error
		for _, p := range places {
			ips, err := net.DefaultResolver.LookupHost(ctx, p.host)
			if err != nil {
				problems = append(problems, fmt.Errorf("look up replica %s: %w", p.host, err))
			}
			for _, ip := range ips {
				out = append(out, net.JoinHostPort(ip, p.port))
			}
		}
		slices.Sort(out)
		out = slices.Compact(out)
		if len(out) > 0 {
			return out, nil // a name that cannot be resolved counts as a replica that does not respond
		}
		return nil, errors.Join(problems...)
	}, nil
}
