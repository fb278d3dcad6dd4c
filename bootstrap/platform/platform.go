// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Platforms as named by CLOUD_PLATFORM.
const (
	AWS   = "aws"
	Azure = "azure"
	GCP   = "gcp"
	None  = "none"
)

// defaultTimeout is sufficient for a service on the same host, which responds within milliseconds.
const defaultTimeout = time.Second

// Config configures Detect.
type Config struct {
	// Platform is CLOUD_PLATFORM: aws, azure, gcp or none, in any case. If empty, firmware and
	// environment decide.
	Platform string
	Env      Env
	// IPv6 queries AWS and Google at their IPv6 addresses, for hosts that have no IPv4. Azure has
	// no IPv6 address.
	IPv6 bool
	// Endpoints replace the addresses of the metadata services.
	Endpoints Endpoints
	// DMIDir is the directory in which the kernel exposes the firmware's data. If empty, it is
	// /sys/class/dmi/id.
	DMIDir string
	// Timeout limits all requests together. 0 means one second.
	Timeout time.Duration
	// Logger logs the warnings. nil discards them.
	Logger *slog.Logger
}

// Env is the part of the environment that concerns the platform.
type Env struct {
	// GCPMetadata is GCP_METADATA: project id, project number, cluster name and cluster location,
	// separated by pipes. If set, no request is sent.
	GCPMetadata string
	// GCEMetadataHost is GCE_METADATA_HOST: host or host:port of Google's metadata service. If set,
	// the platform is Google Cloud.
	GCEMetadataHost string
	// GKEClusterURL is GKE_CLUSTER_URL. If empty, it is derived from project, location and cluster.
	GKEClusterURL string
	// GCPQuotaProject is GCP_QUOTA_PROJECT.
	GCPQuotaProject string
}

// Endpoints are base URLs such as http://169.254.169.254. Empty fields mean the well-known address.
type Endpoints struct {
	AWS, Azure, GCP string
}

// Result describes the platform.
type Result struct {
	// Name is aws, azure, gcp or none.
	Name     string
	Locality Locality
	// Metadata is PLATFORM_METADATA, or nil if nothing is known.
	Metadata map[string]string
}

// Locality is the location of a machine. Unknown parts are empty; no supported cloud has a SubZone.
type Locality struct {
	Region, Zone, SubZone string
}

// Detect detects the platform. If its metadata service does not respond in time, Detect logs a
// warning and the result lacks the data. It returns an error only if ctx is done.
func Detect(ctx context.Context, cfg Config) (Result, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	static, err := parseGCPMetadata(cfg.Env.GCPMetadata)
	if err != nil {
		log.Warn("a setting of the cloud platform is ignored", "err", err)
	}
	name, err := choose(cfg, static != nil)
	if err != nil {
		log.Warn("the cloud platform is detected instead", "err", err)
	}
	start := time.Now()
	asking, cancel := context.WithTimeout(ctx, cfg.timeout())
	defer cancel()
	result := Result{Name: name}
	switch name {
	case AWS:
		result, err = cfg.askAWS(asking)
	case Azure:
		result, err = cfg.askAzure(asking)
	case GCP:
		result, err = cfg.gcp(asking, static)
	default:
		return result, ctx.Err()
	}
	if ctx.Err() != nil {
		return Result{Name: name}, ctx.Err()
	}
	took := time.Since(start).Round(time.Millisecond)
	if err != nil {
		log.Warn("the cloud's metadata service did not answer every request: locality and platform metadata are incomplete. "+
			"CLOUD_PLATFORM=none turns the requests off; the label istio-locality sets the locality", "name", name, "duration", took, "err", err)
	} else {
		log.Info("cloud platform detected", "name", name, "duration", took)
	}
	return result, nil
}

// choose returns the name of the platform. It sends no requests.
func choose(cfg Config, static bool) (string, error) {
	var err error
	switch name := strings.ToLower(cfg.Platform); name {
	case AWS, Azure, GCP, None:
		return name, nil
	case "":
	default:
		err = fmt.Errorf("environment variable CLOUD_PLATFORM is %q; it must be aws, azure, gcp or none", cfg.Platform)
	}
	if static || cfg.Env.GCEMetadataHost != "" {
		return GCP, err
	}
	return readDMI(cfg.DMIDir).platform(), err
}

func (c Config) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return defaultTimeout
}
