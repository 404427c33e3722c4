module github.com/podplane/podplane/services/gateway

go 1.26.0
