// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	defaultDMIDir = "/sys/class/dmi/id"
	// maxDMI is the maximum number of bytes read from a file. The kernel's files are shorter.
	maxDMI = 256
	// azureTag identifies Azure machines. Other machines that run on Microsoft's hypervisor or are
	// made by Microsoft do not have it.
	azureTag  = "7783-7084-3265-9085-8269-3286-77"
	ec2Vendor = "Amazon EC2"
)

// dmi is what the firmware reports about the machine. It does not include files that only root may
// read.
type dmi struct {
	vendor, product, version, bios, chassis string
}

// readDMI reads the kernel's files. Fields that cannot be read are empty.
func readDMI(dir string) dmi {
	if dir == "" {
		dir = defaultDMIDir
	}
	read := func(name string) string {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return "" // no firmware tables, or a sandbox hides them
		}
		defer func() { _ = f.Close() }() // read-only: closing cannot lose data
		text, err := io.ReadAll(io.LimitReader(f, maxDMI))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(text))
	}
	return dmi{
		vendor: read("sys_vendor"), product: read("product_name"), version: read("product_version"),
		bios: read("bios_vendor"), chassis: read("chassis_asset_tag"),
	}
}

// platform returns the cloud that the machine belongs to.
func (d dmi) platform() string {
	const google = "Google" // Google also builds laptops: the vendor alone is not sufficient
	switch {
	case d.chassis == azureTag:
		return Azure
	case d.product == "Google Compute Engine", d.product == google, d.vendor == google && d.bios == google:
		return GCP
	case d.vendor == ec2Vendor, d.bios == ec2Vendor:
		return AWS
	case d.vendor == "Xen" && strings.Contains(strings.ToLower(d.version), "amazon"): // older instance types
		return AWS
	default:
		return None
	}
}
