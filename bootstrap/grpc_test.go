// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

func grpcInput(socket string) GRPCInput {
	return GRPCInput{
		Node: node.ID{Role: node.Sidecar, IP: "10.0.0.1", Name: "shop-1.default", Domain: "default.svc.cluster.local"},
		Metadata: &node.Metadata{
			Name: "shop-1", Namespace: "default", Generator: "other", InstanceIPs: node.List{"10.0.0.1"}, DNSCapture: true,
			Labels: map[string]string{"app": "shop", "istio-locality": "r/z/s"}, ProxyConfig: json.RawMessage(`{"concurrency":1}`),
			Raw: map[string]any{"EXTRA": "of no type"},
		},
		Socket: socket,
	}
}

func TestRenderGRPC(t *testing.T) {
	t.Parallel()
	in := grpcInput("/etc/istio/./proxy/XDS")
	in.CertDir = "/var/lib/istio/data"
	got, err := RenderGRPC(in)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "certificate_providers": {
    "default": {
      "config": {
        "ca_certificate_file": "/var/lib/istio/data/root-cert.pem",
        "certificate_file": "/var/lib/istio/data/cert-chain.pem",
        "private_key_file": "/var/lib/istio/data/key.pem",
        "refresh_interval": "900s"
      },
      "plugin_name": "file_watcher"
    }
  },
  "node": {
    "id": "sidecar~10.0.0.1~shop-1.default~default.svc.cluster.local",
    "locality": {
      "region": "r",
      "sub_zone": "s",
      "zone": "z"
    },
    "metadata": {
      "PROXY_CONFIG": {
        "concurrency": 1
      },
      "NAME": "shop-1",
      "NAMESPACE": "default",
      "GENERATOR": "grpc",
      "LABELS": {
        "app": "shop",
        "istio-locality": "r/z/s"
      },
      "INSTANCE_IPS": "10.0.0.1",
      "DNS_CAPTURE": "true"
    }
  },
  "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
  "xds_servers": [
    {
      "channel_creds": [
        {
          "type": "insecure"
        }
      ],
      "server_features": [
        "xds_v3"
      ],
      "server_uri": "unix:///etc/istio/proxy/XDS"
    }
  ]
}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if in.Metadata.Generator != "other" || in.Metadata.Raw == nil {
		t.Error("the metadata of the proxy itself was changed")
	}
	if _, err := RenderGRPC(GRPCInput{Socket: "/x"}); err == nil {
		t.Error("an input without metadata was taken")
	}
	if _, err := RenderGRPC(grpcInput("./etc/XDS")); err == nil {
		t.Error("a relative path was taken: the application has another working directory")
	}
}

// streamOnce is an ADS server that records the node of the first stream.
type streamOnce struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	first chan *corev3.Node
}

func (s *streamOnce) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	select {
	case s.first <- req.GetNode():
	default:
	}
	<-stream.Context().Done()
	return nil
}

// dial lets gRPC's own library load a bootstrap and resolve a service.
func dial(t *testing.T, doc []byte) *grpc.ClientConn {
	t.Helper()
	builder, err := xds.NewXDSResolverWithConfigForTesting(doc)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///shop.default.svc.cluster.local:80", grpc.WithResolvers(builder), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	conn.Connect()
	return conn
}

// TestRenderGRPCIsWhatGRPCReads checks that gRPC's own library accepts the bootstrap, finds the
// socket even if its path contains special characters, and sends the node.
func TestRenderGRPCIsWhatGRPCReads(t *testing.T) {
	t.Parallel()
	for name, certDir := range map[string]string{"plain": "", "with certificates": "/var/lib/istio/data"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "a b%20c") // t.TempDir is too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			in := grpcInput(filepath.Join(dir, "XDS"))
			in.CertDir = certDir
			doc, err := RenderGRPC(in)
			if err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("unix", in.Socket)
			if err != nil {
				t.Fatal(err)
			}
			ads := &streamOnce{first: make(chan *corev3.Node, 1)}
			server := grpc.NewServer()
			discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads)
			go func() { _ = server.Serve(listener) }() // ends by Stop
			t.Cleanup(server.Stop)

			dial(t, doc)
			select {
			case n := <-ads.first:
				fields := n.GetMetadata().GetFields()
				if n.GetId() != in.Node.String() || n.GetLocality().GetSubZone() != "s" || fields["GENERATOR"].GetStringValue() != "grpc" || fields["EXTRA"] != nil {
					t.Errorf("the node is %v", n)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("timeout: gRPC opens a stream over the socket; the bootstrap is\n%s", doc)
			}
		})
	}
}

// TestGRPCRefusesASpoiltBootstrap checks that gRPC rejects an invalid bootstrap, on which the test
// above relies.
func TestGRPCRefusesASpoiltBootstrap(t *testing.T) {
	t.Parallel()
	in := grpcInput("/etc/istio/proxy/XDS")
	in.CertDir = "/var/lib/istio/data"
	doc, err := RenderGRPC(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, replace := range [][2]string{{`"900s"`, `"soon"`}, {`"insecure"`, `"none"`}} {
		conn := dial(t, []byte(strings.Replace(string(doc), replace[0], replace[1], 1)))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := conn.Invoke(ctx, "/x/y", nil, nil)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "bootstrap") {
			t.Errorf("%s: error %v", replace[1], err)
		}
	}
}
