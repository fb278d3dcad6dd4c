// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// workloadSecret is the name of the secret with the certificate of a workload.
const workloadSecret = "default"

// noCertificate is the error for an Envoy that has not been given a certificate.
const noCertificate = "its Envoy has no certificate"

// addCertificates asks the proxies of both sides which certificates they have now.
func (f *requestFlags) addCertificates(ctx context.Context, s *report.Security) {
	var both errgroup.Group
	for _, c := range []*report.Certificate{s.Client, s.Server} {
		if c == nil || c.Address == "" {
			continue
		}
		p := f.proxyOf(c)
		both.Go(func() error {
			if err := p.certificate(ctx, c, min(f.timeout, agentTimeout)); err != nil {
				c.Error = err.Error()
			}
			return nil
		})
	}
	_ = both.Wait() // each certificate has its own error
}

// proxyOf returns the proxy of a certificate.
func (f *requestFlags) proxyOf(c *report.Certificate) proxy {
	host := c.Address
	if addresses, err := f.addresses(); err == nil && len(addresses) == 1 && isolated(addresses[0]) {
		host = published(host, addresses[0])
	}
	return proxy{name: c.Proxy, namespace: c.Namespace, agent: net.JoinHostPort(host, agentPort)}
}

// certificate adds what the Envoy of a proxy says about its certificate.
func (p proxy) certificate(ctx context.Context, c *report.Certificate, timeout time.Duration) error {
	admin, done, err := p.reach(ctx, adminPort, timeout)
	if err != nil {
		return err
	}
	defer done()
	raw, err := askAdmin(ctx, admin, http.MethodGet, "/config_dump", "resource=dynamic_active_secrets", timeout)
	if err != nil {
		return err
	}
	var dump struct {
		Configs []json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(raw, &dump); err != nil {
		return fmt.Errorf("it is not a config_dump in JSON: %w", err)
	}
	options := protojson.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: maxNesting, Resolver: &resolver{Types: protoregistry.GlobalTypes}}
	all := &adminv3.SecretsConfigDump{}
	for _, text := range dump.Configs {
		one, typed := &adminv3.SecretsConfigDump_DynamicSecret{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(text, &typed); err != nil {
			return err
		}
		delete(typed, "@type")
		if text, err = json.Marshal(typed); err == nil {
			err = options.Unmarshal(text, one)
		}
		if err != nil {
			return fmt.Errorf("read a secret: %w", err)
		}
		all.DynamicActiveSecrets = append(all.DynamicActiveSecrets, one)
	}
	for _, s := range secretsOf(all, time.Now()) {
		if s.Name == workloadSecret && !s.NotAfter.IsZero() {
			c.Issuer, c.NotAfter = s.Issuer, s.NotAfter
			if s.Identity != "" {
				c.Identity = s.Identity
			}
			return nil
		}
	}
	return errors.New(noCertificate)
}

// secured prints how the connection of a request is secured.
func (v view) secured(s report.Security) {
	with := "Without a certificate of the client"
	if s.Mutual {
		with = "Mutual TLS"
	}
	if s.Reason != "" {
		with += ": " + s.Reason
	}
	v.say("\n%s\n", with)
	v.origins(s.Objects)
	v.field("port", map[string]string{
		"STRICT": "accepts mutual TLS only", "PERMISSIVE": "accepts mutual TLS and plaintext", "DISABLE": "accepts plaintext only",
	}[s.Mode]+map[bool]string{true: ", the default"}[len(s.Modes) == 0])
	v.origins(s.Modes)
	v.certificateOf("client", s.Client)
	v.certificateOf("server", s.Server)
}

// certificateOf prints the certificate of one side.
func (v view) certificateOf(side string, c *report.Certificate) {
	if c == nil {
		v.field(side, "none")
		return
	}
	v.field(side, c.Identity)
	switch {
	case c.Error != "":
		v.field("", "its certificate is not known: "+c.Error)
	case !c.NotAfter.IsZero():
		lasts, until := lasting{Until: c.NotAfter}.lasts(v.now)
		text := lasts + " left, until " + until
		if lasts == "expired" {
			text = "expired at " + until
		}
		v.field("", strings.TrimSuffix("issued by "+c.Issuer+", ", "issued by , ")+text)
	}
}
