// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// HTTP returns an HTTP client that authenticates itself to an API server, and the URL of the API
// server without a slash at the end. It sends requests at any rate.
func HTTP(cfg Config) (c *http.Client, server string, err error) {
	restConfig, err := load(cfg)
	if err != nil {
		return nil, "", err
	}
	restConfig.UserAgent = cfg.UserAgent
	if c, err = rest.HTTPClientFor(restConfig); err != nil {
		return nil, "", fmt.Errorf("connect to Kubernetes: %w", err)
	}
	url, _, err := rest.DefaultServerUrlFor(restConfig)
	if err != nil {
		return nil, "", fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, strings.TrimSuffix(url.String(), "/"), nil
}
