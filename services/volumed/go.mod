module github.com/podplane/podplane/services/volumed

go 1.26.0
