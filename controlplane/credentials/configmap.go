// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// RootMaps stores the roots in ConfigMaps, in their key ca.crt.
type RootMaps struct{ *Table }

// NewRootMaps returns an empty RootMaps. If all is true, a ConfigMap that was not stored does not
// exist; otherwise it has not been read yet. For the other parameters see [NewTable].
func NewRootMaps(all bool, log *slog.Logger, reg prometheus.Registerer) (RootMaps, error) {
	t, err := NewTable(log, reg)
	if err != nil {
		return RootMaps{}, err
	}
	t.absent = func(k key) error {
		if all {
			return noConfigMap(k)
		}
		return fmt.Errorf("the ConfigMap %s/%s: %w", k.namespace, k.name, ErrLoading)
	}
	return RootMaps{t}, nil
}

func noConfigMap(k key) error {
	return fmt.Errorf("%w: there is no ConfigMap %s/%s", ErrNotFound, k.namespace, k.name)
}

// Set stores the data of a ConfigMap.
func (m RootMaps) Set(namespace, name string, data map[string]string) {
	if data[keyTLSRoot] == "" {
		m.Refuse(namespace, name, fmt.Errorf("the ConfigMap %s/%s has no key %s: write the roots there, as PEM", namespace, name, keyTLSRoot))
		return
	}
	m.Table.Set(namespace, name, map[string][]byte{keyTLSRoot: []byte(data[keyTLSRoot])})
}

// Gone records that a ConfigMap does not exist.
func (m RootMaps) Gone(namespace, name string) {
	m.Refuse(namespace, name, noConfigMap(key{namespace, name}))
}
