// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"errors"
	"net/url"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// GRPCInput is all that the bootstrap of applications with gRPC of their own
// depends on.
type GRPCInput struct {
	// Node is the id of the proxy.
	Node node.ID
	// Metadata is the metadata of the proxy; keys without a type are left out.
	Metadata *node.Metadata
	// Locality is where the cloud says the proxy is: it counts when no label
	// does.
	Locality Locality
	// Socket is the absolute path of the agent's ADS socket.
	Socket string
	// CertDir is where the agent keeps key and certificates as files. Empty:
	// it does not, and the application has no identity of the mesh.
	CertDir string
}

// RenderGRPC returns the bootstrap, as JSON, by which gRPC libraries find the
// control plane without an Envoy between: over the agent's ADS socket.
func RenderGRPC(in GRPCInput) ([]byte, error) {
	switch {
	case in.Metadata == nil:
		return nil, errors.New("render bootstrap of gRPC: the input has no metadata")
	case !filepath.IsAbs(in.Socket):
		return nil, errors.New("render bootstrap of gRPC: the path of the ADS socket is not absolute")
	}
	metadata := *in.Metadata
	metadata.Raw = nil
	metadata.Generator = "grpc"
	rendered := object{
		"xds_servers": []any{object{
			// As a URL: gRPC decodes what is escaped.
			"server_uri":      (&url.URL{Scheme: "unix", Path: filepath.Clean(in.Socket)}).String(),
			"channel_creds":   []any{object{"type": "insecure"}},
			"server_features": []any{"xds_v3"},
		}},
		"node": object{
			"id":       in.Node.String(),
			"locality": localityOf(Input{Metadata: in.Metadata, Locality: in.Locality}),
			"metadata": metadata,
		},
		"server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
	}
	if in.CertDir != "" {
		rendered["certificate_providers"] = object{"default": object{
			"plugin_name": "file_watcher",
			"config": object{
				"certificate_file":    filepath.Join(in.CertDir, "cert-chain.pem"),
				"private_key_file":    filepath.Join(in.CertDir, "key.pem"),
				"ca_certificate_file": filepath.Join(in.CertDir, "root-cert.pem"),
				"refresh_interval":    "900s",
			},
		}}
	}
	return marshal(rendered)
}
