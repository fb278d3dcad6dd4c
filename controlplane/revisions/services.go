// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// maxService is the maximum size in bytes of a service with its endpoints, as JSON.
const maxService = 64 << 20

// Services returns the services of a platform, with their endpoints, as a source. A version is
// compressed JSON, because most labels of endpoints are the same.
func Services(platform registry.Platform) Source {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return services{platform, z}
}

type services struct {
	platform registry.Platform
	z        *gzip.Writer // used by Encode, which a log calls once at a time
}

// Key implements [Source]. A change of endpoints is a change of their service.
func (s services) Key(changed model.Key) (model.Key, bool) {
	ok := changed.Kind == model.KubernetesService || changed.Kind == model.KubernetesEndpoints
	changed.Kind = model.KubernetesService
	return changed, ok
}

// Keys implements [Source].
func (s services) Keys() (keys []model.Key) {
	for _, svc := range s.platform.Services() {
		keys = append(keys, model.Key{Kind: model.KubernetesService, Namespace: svc.Service.Namespace, Name: svc.Name})
	}
	return keys
}

// Get implements [Source].
func (s services) Get(key model.Key) *Present {
	svc := s.platform.Service(key.Namespace, key.Name)
	if svc == nil {
		return nil
	}
	addresses := map[string]bool{}
	for _, e := range svc.Endpoints {
		if !e.Unhealthy && !e.Draining {
			addresses[e.Address] = true
		}
	}
	n := len(addresses)
	return &Present{Object: svc, Created: svc.Service.Created, Endpoints: &n, Encode: func() ([]byte, error) {
		var b bytes.Buffer // a string of JSON
		b.WriteByte('"')
		text := base64.NewEncoder(base64.StdEncoding, &b)
		s.z.Reset(text)
		err := json.NewEncoder(s.z).Encode(svc)
		err = errors.Join(err, s.z.Close(), text.Close())
		b.WriteByte('"')
		return b.Bytes(), err
	}}
}

// Service returns the service of a version.
func Service(v report.Version) (*registry.PlatformService, error) {
	svc := &registry.PlatformService{}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(bytes.Trim(v.Object, `"`))))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(z, maxService)).Decode(svc)
	}
	if err == nil && svc.Service == nil {
		err = errors.New("it has no definition")
	}
	if err != nil {
		return nil, fmt.Errorf("read version %s of %s: %w", v.Revision, keyOf(v.Ref), err)
	}
	return svc, nil
}
