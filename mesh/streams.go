// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// stream is a TCP service that an Envoy serves at a loopback address.
type stream struct{ service, address string }

// listenersDump is the part of Envoy's listeners that is used.
type listenersDump struct {
	Configs []struct {
		Active struct {
			Listener struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Direction string      `json:"traffic_direction"`
				Chains    []chainDump `json:"filter_chains"`
				Default   chainDump   `json:"default_filter_chain"`
			} `json:"listener"`
		} `json:"active_state"`
	} `json:"configs"`
}

type chainDump struct {
	Filters []struct {
		Config struct {
			Cluster  string `json:"cluster"`
			Weighted struct {
				Clusters []struct {
					Name string `json:"name"`
				} `json:"clusters"`
			} `json:"weighted_clusters"`
		} `json:"typed_config"`
	} `json:"filters"`
}

// askStreams returns the TCP services that an Envoy serves outbound, by its admin address.
func askStreams(ctx context.Context, client *http.Client, admin string) (out []stream, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/config_dump?resource=dynamic_listeners", nil)
	if err != nil {
		return nil, fmt.Errorf("request listeners: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("request listeners: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read
	var all listenersDump
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&all); err != nil {
		return nil, fmt.Errorf("read the listeners of %s: %w", admin, err)
	}
	for _, config := range all.Configs {
		l := config.Active.Listener
		if l.Direction != "OUTBOUND" {
			continue
		}
		at := net.JoinHostPort(l.Address.Socket.Address, strconv.Itoa(l.Address.Socket.Port))
		for _, chain := range append(l.Chains, l.Default) {
			for _, f := range chain.Filters {
				names := []string{f.Config.Cluster}
				for _, c := range f.Config.Weighted.Clusters {
					names = append(names, c.Name)
				}
				for _, name := range names {
					// Clusters are named "outbound|<port>|<subset>|<host>".
					if parts := strings.Split(name, "|"); len(parts) == 4 {
						out = append(out, stream{net.JoinHostPort(parts[3], parts[1]), at})
					}
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b stream) int { return strings.Compare(a.service+a.address, b.service+b.address) })
	return slices.Compact(out), nil
}
