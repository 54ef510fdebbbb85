//go:build tools

// Package seaweedfs only pins the version of the S3 server that up.sh builds.
package seaweedfs

import _ "github.com/seaweedfs/seaweedfs/weed"
