// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// cloud is a metadata service on loopback that records its requests.
type cloud struct {
	url string
	mu  sync.Mutex // guards asked
	// asked contains the method and path of each request.
	asked []string
}

func (c *cloud) requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// serve runs a metadata service until the test ends.
func serve(t *testing.T, handler http.HandlerFunc) *cloud {
	t.Helper()
	listener, err := net.Listen("tcp", "127.77.41.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{url: "http://" + listener.Addr().String()}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.asked = append(c.asked, r.Method+" "+r.URL.Path)
		c.mu.Unlock()
		handler(w, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // returns when the server is closed
	}()
	t.Cleanup(func() {
		_ = server.Close() // requests may hang on purpose
		<-done
	})
	return c
}

// write responds with a text and ignores errors.
func write(w http.ResponseWriter, text string) { _, _ = w.Write([]byte(text)) }

// aws returns an instance metadata service. If token is set, it requires sessions; otherwise it
// does not support them.
func aws(token string, values map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Forwarded-For") != "":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/latest/api/token" && token != "":
			if r.Method != http.MethodPut || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			write(w, token)
		case token != "" && r.Header.Get("X-aws-ec2-metadata-token") != token:
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			value, ok := values[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			write(w, value)
		}
	}
}

// azure returns an instance metadata service that responds with a document.
func azure(doc string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata") != "true" || r.URL.Query().Get("api-version") == "" || r.Header.Get("X-Forwarded-For") != "" {
			w.WriteHeader(http.StatusBadRequest)
			write(w, `{"error":"Bad request. Required metadata header not specified"}`)
			return
		}
		if r.URL.Path != "/metadata/instance/compute" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		write(w, doc)
	}
}

// google returns a metadata service with values below /computeMetadata/v1/.
func google(values map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		value, ok := values[strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		write(w, value)
	}
}

// firmware creates a directory like the kernel's; pairs are file names and contents.
func firmware(t *testing.T, pairs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i+1 < len(pairs); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, pairs[i]), []byte(pairs[i+1]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// logged returns a logger and a function that returns its output.
func logged() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}

// awsValues are the values of a machine in Oregon.
func awsValues() map[string]string {
	return map[string]string{"placement/region": "us-west-2", "placement/availability-zone": "us-west-2b", "instance-id": "i-0abc"}
}

func googleValues() map[string]string {
	return map[string]string{
		"project/project-id": "shop-prod", "project/numeric-project-id": "123", "instance/zone": "projects/123/zones/us-central1-c",
		"instance/name": "gke-node-7", "instance/id": "987", "instance/attributes/cluster-name": "shop", "instance/attributes/cluster-location": "us-central1",
		"instance/attributes/instance-template": "projects/123/global/instanceTemplates/t", "instance/attributes/created-by": "projects/123/zones/us-central1-c/instanceGroupManagers/m",
	}
}

const azureDoc = `{"name":"negasonic","location":"centralus","zone":"1","vmId":"13f56399","vmSize":"x","tags":"Old:1","userData":"secret",` +
	`"tagsList":[{"name":"Department","value":"IT"},{"name":"Note","value":"a:b;c"}]}`

func TestDetectAsksTheCloud(t *testing.T) {
	t.Parallel()
	old := awsValues()
	delete(old, "placement/region")
	local := map[string]string{"placement/availability-zone": "us-west-2-lax-1a", "instance-id": "i-1"}
	vm := googleValues()
	for key := range vm {
		if strings.Contains(key, "attributes") {
			delete(vm, key)
		}
	}
	for name, tc := range map[string]struct {
		platform string
		handler  http.HandlerFunc
		env      Env
		want     Result
	}{
		"aws with sessions": {platform: "AWS", handler: aws("AQAE-token==", awsValues()), want: Result{
			Name: AWS, Locality: Locality{Region: "us-west-2", Zone: "us-west-2b"},
			Metadata: map[string]string{"aws_region": "us-west-2", "aws_availability_zone": "us-west-2b", "aws_instance_id": "i-0abc"},
		}},
		"aws without sessions and without the region": {platform: "aws", handler: aws("", old), want: Result{
			Name: AWS, Locality: Locality{Region: "us-west-2", Zone: "us-west-2b"},
			Metadata: map[string]string{"aws_region": "us-west-2", "aws_availability_zone": "us-west-2b", "aws_instance_id": "i-0abc"},
		}},
		"a local zone of aws": {platform: "aws", handler: aws("t", local), want: Result{
			Name: AWS, Locality: Locality{Region: "us-west-2", Zone: "us-west-2-lax-1a"},
			Metadata: map[string]string{"aws_region": "us-west-2", "aws_availability_zone": "us-west-2-lax-1a", "aws_instance_id": "i-1"},
		}},
		"azure": {platform: "azure", handler: azure(azureDoc), want: Result{
			Name: Azure, Locality: Locality{Region: "centralus", Zone: "1"},
			Metadata: map[string]string{"azure_name": "negasonic", "azure_location": "centralus", "azure_vmId": "13f56399", "azure_Department": "IT", "azure_Note": "a:b;c"},
		}},
		"azure with tags of the old kind and without zones": {platform: "azure", handler: azure(`{"name":"n","location":"westus","zone":"","tags":"A:1;B;C:x:y;;:z"}`), want: Result{
			Name: Azure, Locality: Locality{Region: "westus"},
			Metadata: map[string]string{"azure_name": "n", "azure_location": "westus", "azure_A": "1", "azure_B": "", "azure_C": "x:y"},
		}},
		"gcp, a node of a regional cluster": {platform: "Gcp", handler: google(googleValues()), env: Env{GCPQuotaProject: "bill-me"}, want: Result{
			Name: GCP, Locality: Locality{Region: "us-central1", Zone: "us-central1-c"},
			Metadata: map[string]string{
				"gcp_project": "shop-prod", "gcp_project_number": "123", "gcp_location": "us-central1", "gcp_gke_cluster_name": "shop",
				"gcp_gke_cluster_url": "https://container.googleapis.com/v1/projects/shop-prod/locations/us-central1/clusters/shop",
				"gcp_gce_instance":    "gke-node-7", "gcp_gce_instance_id": "987", "gcp_gce_instance_template": "projects/123/global/instanceTemplates/t",
				"gcp_gce_instance_created_by": "projects/123/zones/us-central1-c/instanceGroupManagers/m", "gcp_quota_project": "bill-me",
			},
		}},
		"gcp, a machine of no cluster": {platform: "gcp", handler: google(vm), want: Result{
			Name: GCP, Locality: Locality{Region: "us-central1", Zone: "us-central1-c"},
			Metadata: map[string]string{
				"gcp_project": "shop-prod", "gcp_project_number": "123", "gcp_location": "us-central1-c", "gcp_gce_instance": "gke-node-7", "gcp_gce_instance_id": "987",
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, tc.handler)
			log, text := logged()
			got, err := Detect(t.Context(), Config{
				Platform: tc.platform, Env: tc.env, Endpoints: Endpoints{AWS: c.url, Azure: c.url, GCP: c.url + "/"}, DMIDir: t.TempDir(), Logger: log,
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if strings.Contains(text.String(), "WARN") || strings.Contains(text.String(), "token") {
				t.Errorf("the log: %s", text)
			}
		})
	}
}

// TestDetectChooses checks the criteria for the platform, which is determined without network
// access.
func TestDetectChooses(t *testing.T) {
	t.Parallel()
	vm := func(pairs ...string) []string { return pairs }
	for name, tc := range map[string]struct {
		dmi      []string
		platform string
		env      Env
		want     string
	}{
		"no firmware tables":             {want: None},
		"a laptop":                       {dmi: vm("sys_vendor", "LENOVO", "product_name", "20XW", "bios_vendor", "LENOVO", "chassis_asset_tag", "No Asset Information"), want: None},
		"a laptop that Google has built": {dmi: vm("sys_vendor", "Google", "product_name", "Eve", "bios_vendor", "coreboot"), want: None},
		"Hyper-V at home":                {dmi: vm("sys_vendor", "Microsoft Corporation", "product_name", "Virtual Machine", "chassis_asset_tag", "5501-0000"), want: None},
		"QEMU":                           {dmi: vm("sys_vendor", "QEMU", "product_name", "Standard PC (Q35 + ICH9, 2009)"), want: None},
		"Xen at home":                    {dmi: vm("sys_vendor", "Xen", "product_name", "HVM domU", "product_version", "4.11.1"), want: None},
		"EC2 on Nitro":                   {dmi: vm("sys_vendor", "Amazon EC2", "product_name", "m7g.large", "bios_vendor", "Amazon EC2"), want: AWS},
		"EC2 on Xen":                     {dmi: vm("sys_vendor", "Xen", "product_name", "HVM domU", "product_version", "4.11.amazon"), want: AWS},
		"Azure":                          {dmi: vm("sys_vendor", "Microsoft Corporation", "product_name", "Virtual Machine", "chassis_asset_tag", azureTag), want: Azure},
		"Compute Engine":                 {dmi: vm("sys_vendor", "Google", "product_name", "Google Compute Engine", "bios_vendor", "Google"), want: GCP},
		"told otherwise":                 {dmi: vm("sys_vendor", "Amazon EC2"), platform: "NONE", want: None},
		"told, without firmware tables":  {platform: "azure", want: Azure},
		"GCP_METADATA":                   {dmi: vm("sys_vendor", "Amazon EC2"), env: Env{GCPMetadata: "p|1|c|us-east1-b"}, want: GCP},
		"GCP_METADATA that says nothing": {env: Env{GCPMetadata: "|||"}, want: None},
		"GCE_METADATA_HOST":              {env: Env{GCEMetadataHost: "metadata:8080"}, want: GCP},
		"a quota project alone":          {env: Env{GCPQuotaProject: "p"}, want: None},
		"a word that is none":            {dmi: vm("bios_vendor", "Amazon EC2"), platform: "amazon", want: AWS},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Platform: tc.platform, Env: tc.env, DMIDir: firmware(t, tc.dmi...)}
			static, parseErr := parseGCPMetadata(tc.env.GCPMetadata)
			got, err := choose(cfg, static != nil)
			if got != tc.want {
				t.Errorf("choose() = %s, want %s", got, tc.want)
			}
			if wrong := tc.platform == "amazon"; wrong != (err != nil) || wrong && !strings.Contains(err.Error(), `CLOUD_PLATFORM is "amazon"; it must be aws, azure, gcp or none`) {
				t.Errorf("error %v", err)
			}
			if wrong := tc.env.GCPMetadata == "|||"; wrong != (parseErr != nil) {
				t.Errorf("GCP_METADATA: %v", parseErr)
			}
		})
	}
}

// TestDetectSendsNothing checks that neither a machine outside the supported clouds nor one with
// complete static data sends requests.
func TestDetectSendsNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  Config
		want Result
	}{
		"no cloud":       {cfg: Config{}, want: Result{Name: None}},
		"none, on Azure": {cfg: Config{Platform: "none", DMIDir: firmware(t, "chassis_asset_tag", azureTag)}, want: Result{Name: None}},
		"GCP_METADATA, zonal": {cfg: Config{Env: Env{GCPMetadata: "p|1|c|europe-west1-d", GCPQuotaProject: "q"}}, want: Result{
			Name: GCP, Locality: Locality{Region: "europe-west1", Zone: "europe-west1-d"},
			Metadata: map[string]string{
				"gcp_project": "p", "gcp_project_number": "1", "gcp_gke_cluster_name": "c", "gcp_location": "europe-west1-d", "gcp_quota_project": "q",
				"gcp_gke_cluster_url": "https://container.googleapis.com/v1/projects/p/locations/europe-west1-d/clusters/c",
			},
		}},
		"GCP_METADATA, regional": {cfg: Config{Platform: "gcp", Env: Env{GCPMetadata: "p|1|c|europe-west1", GKEClusterURL: "https://x"}}, want: Result{
			Name: GCP, Locality: Locality{Region: "europe-west1"},
			Metadata: map[string]string{"gcp_project": "p", "gcp_project_number": "1", "gcp_gke_cluster_name": "c", "gcp_location": "europe-west1", "gcp_gke_cluster_url": "https://x"},
		}},
		"GCP_METADATA, in part": {cfg: Config{Env: Env{GCPMetadata: "p|||"}}, want: Result{Name: GCP, Metadata: map[string]string{"gcp_project": "p"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, func(http.ResponseWriter, *http.Request) {})
			tc.cfg.Endpoints = Endpoints{AWS: c.url, Azure: c.url, GCP: c.url}
			if tc.cfg.DMIDir == "" {
				tc.cfg.DMIDir = t.TempDir()
			}
			got, err := Detect(t.Context(), tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if asked := c.requests(); len(asked) != 0 {
				t.Errorf("it was asked: %q", asked)
			}
		})
	}
}

// TestDetectByFirmware checks that the firmware selects the service of its cloud and no other.
func TestDetectByFirmware(t *testing.T) {
	t.Parallel()
	for want, dmi := range map[string][]string{
		AWS: {"sys_vendor", "Amazon EC2"}, Azure: {"chassis_asset_tag", azureTag}, GCP: {"product_name", "Google Compute Engine"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			clouds := map[string]*cloud{AWS: serve(t, aws("t", awsValues())), Azure: serve(t, azure(azureDoc)), GCP: serve(t, google(googleValues()))}
			got, err := Detect(t.Context(), Config{
				DMIDir: firmware(t, dmi...), Endpoints: Endpoints{AWS: clouds[AWS].url, Azure: clouds[Azure].url, GCP: clouds[GCP].url},
			})
			if err != nil || got.Name != want || got.Locality.Region == "" || got.Locality.Zone == "" || len(got.Metadata) == 0 {
				t.Errorf("Detect() = %+v, %v", got, err)
			}
			for name, c := range clouds {
				if asked := len(c.requests()); (asked > 0) != (name == want) {
					t.Errorf("%s was asked %d times", name, asked)
				}
			}
		})
	}
}

// TestMetadataHost checks that GCE_METADATA_HOST replaces the well-known address.
func TestMetadataHost(t *testing.T) {
	t.Parallel()
	c := serve(t, google(googleValues()))
	got, err := Detect(t.Context(), Config{Env: Env{GCEMetadataHost: strings.TrimPrefix(c.url, "http://")}, DMIDir: t.TempDir()})
	if err != nil || got.Locality.Zone != "us-central1-c" {
		t.Errorf("Detect() = %+v, %v", got, err)
	}
	for _, host := range []string{"a/b", "user@host", "a b", "[", "h?q", "h#f"} {
		log, text := logged()
		got, err := Detect(t.Context(), Config{Env: Env{GCEMetadataHost: host}, DMIDir: t.TempDir(), Logger: log})
		want := strings.ReplaceAll(fmt.Sprintf("GCE_METADATA_HOST is %q", host), `"`, `\"`)
		if err != nil || got.Metadata != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%q: %+v, %v, %s", host, got, err, text)
		}
	}
}
